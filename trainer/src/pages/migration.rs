//! Migration guides for users of other training frameworks.
//!
//! Each page maps the callbacks and settings of one framework to the points and settings of this
//! crate, and lists the differences. Every name of this crate is a link, so a page cannot refer to
//! something that does not exist.
//!
//! The tables of points are also used elsewhere. Compiler messages quote them:
//! *`on_train_batch_end` is a name from PyTorch Lightning and Keras; here it is …*. Tests use them
//! to translate recorded runs of trainer-tools, Lightning, MMEngine and fastai. The tests check
//! that runs of this crate have the same order of calls, apart from the differences in the last
//! column.

#[cfg(doc)]
use crate::{data::InMemory, *};

#[doc = trainer_macros::migration_page!(pytorch)]
pub mod pytorch {}

#[doc = trainer_macros::migration_page!(trainer_tools)]
pub mod trainer_tools {}

#[doc = trainer_macros::migration_page!(lightning)]
pub mod lightning {}

#[doc = trainer_macros::migration_page!(mmengine)]
pub mod mmengine {}

#[doc = trainer_macros::migration_page!(fastai)]
pub mod fastai {}

#[doc = trainer_macros::migration_page!(keras)]
pub mod keras {}

#[doc = trainer_macros::migration_page!(ignite)]
pub mod ignite {}

#[doc = trainer_macros::migration_page!(hugging_face)]
pub mod hugging_face {}

/// The code in the table cells of the pages, compiled as documentation tests.
#[doc(hidden)]
#[doc = trainer_macros::migration_cells!()]
pub mod cells {}

/// A row of a page's table of points, for tests.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The module that contains the page.
    pub page: &'static str,
    /// The name in the other framework.
    pub theirs: &'static str,
    /// The corresponding point or operation; empty if there is none.
    pub moment: &'static str,
    /// The phases in which the moment corresponds to the name, such as `only = train`; empty for
    /// all phases.
    pub filter: &'static str,
    /// The differences, as shown on the page.
    pub differs: &'static str,
}

/// The rows of all tables of points.
#[doc(hidden)]
pub const POINTS: &[Row] = trainer_macros::migration_points!(Row);
