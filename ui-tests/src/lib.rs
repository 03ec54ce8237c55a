//! Compile-fail tests and their expected diagnostics: see `fail/`.
