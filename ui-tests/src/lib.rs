//! What must not compile, and what people read then: see `fail/`.
