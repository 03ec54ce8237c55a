//! The type `!`, which has no stable name.

/// Names the type `!`, which has no stable name: the return type of a closure that always panics.
#[doc(hidden)]
pub trait Returned {
    #[doc(hidden)]
    type Type;
}

impl<T> Returned for fn() -> T {
    type Type = T;
}
