//! Types that stay on their thread.

/// Implemented by no type: explains why a type with `stays_on_its_thread!` does not leave its
/// thread.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be used on another thread than the one that runs the hook",
    label = "belongs to the thread of the run",
    note = "read what the other thread needs before it starts, and use what it computed after it has ended"
)]
pub trait OnAnyThread {}

/// Declares that a type is neither `Send` nor `Sync`. Otherwise, rustc reports each of its fields
/// that is not.
macro_rules! stays_on_its_thread {
    ($stays:ident<$parameter:ident>) => {
        // SAFETY: nothing implements `OnAnyThread`, so the type is not `Send`.
        #[allow(unsafe_code)]
        unsafe impl<$parameter> Send for $stays<$parameter> where
            $stays<$parameter>: $crate::libtorch::OnAnyThread
        {
        }
        // SAFETY: nothing implements `OnAnyThread`, so the type is not `Sync`.
        #[allow(unsafe_code)]
        unsafe impl<$parameter> Sync for $stays<$parameter> where
            $stays<$parameter>: $crate::libtorch::OnAnyThread
        {
        }
    };
}

pub(crate) use stays_on_its_thread;
