//! The type `!`, which has no stable name.

/// Names the type `!`, the return type of a closure that always panics, as
/// `<fn() -> ! as Returned>::Type`. The type itself has no stable name.
#[doc(hidden)]
pub trait Returned {
    #[doc(hidden)]
    type Type;
}

impl<T> Returned for fn() -> T {
    type Type = T;
}
