//! Data sets that change the rows of another data set, or choose among them.

mod map;
pub(super) mod subset;
pub(super) mod weighted;

pub use map::Map;
pub use subset::Subset;
pub use weighted::Weighted;
