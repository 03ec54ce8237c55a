//! [`NamedLoaders`]: several loaders for one entry point, each with a name.

use std::fmt;
use std::sync::Arc;

use super::batch::Batch;
use super::fingerprint::UNKNOWN_CONTENT;
use super::loader::{Batches, Loader, NamedLoader};
use super::rows::Rows;
use crate::distributed::Share;
use crate::error::{Error, Result};
use crate::values::every::Every;

type BoxedLoader<'l, B> = Box<dyn Loader<B> + 'l>;

/// Several validation or test loaders, each with a name and optionally an interval.
///
/// Use this when you validate or test on several data sets.
///
/// Pass it instead of a single loader: to [`fit`](crate::Trainer::fit) as validation data, to
/// [`validate`](crate::Trainer::validate) or to [`test`](crate::Trainer::test). Each loader has its
/// own pass, in the order in which the loaders were added. The names of the metrics of a pass
/// contain the name of its loader: `valid/clean/loss`, `valid/noisy/loss`. Training and prediction
/// need a single loader.
///
/// ```
/// use trainer::data::NamedLoaders;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let data = |rows| Tensor::randn([rows, 4], (Kind::Float, Device::Cpu));
/// # let rows = |count| InMemory::new((data(count), data(count))).map(|rows| rows.batch_size(8));
/// # let (mut train, clean, noisy) = (rows(32)?, rows(16)?, rows(16)?);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 4, Default::default());
/// # let task = Supervised::new(vs, net, |pred, target| pred.mse_loss(target, Reduction::Mean));
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).epochs(4).build()?;
/// let mut valid = NamedLoaders::new()
///     .add("clean", clean) // at the intervals of `validate_every`
///     .add_every("noisy", noisy, Every::Epochs(2));
/// let summary = trainer.fit(&mut train, Some(&mut valid))?;
/// assert_eq!(summary.history.points("valid/clean/loss").count(), 4);
/// assert_eq!(summary.history.points("valid/noisy/loss").count(), 2);
/// # Ok(())
/// # }
/// ```
///
/// When an entry point starts, it returns an error if
///
/// - the list is empty;
/// - a loader is itself a `NamedLoaders`;
/// - a name is empty, contains `/` or `@`, has surrounding spaces, or is used twice;
/// - an interval is invalid, or longer than the fit.
///
/// A loader that yields no batches ends the run with an error that names the loader.
#[doc(alias = "CombinedLoader")]
pub struct NamedLoaders<'l, B: Batch> {
    loaders: Vec<Owned<'l, B>>,
}

/// A loader, its name and its interval.
struct Owned<'l, B: Batch> {
    name: Arc<str>,
    every: Option<Every>,
    loader: Box<dyn Loader<B> + 'l>,
}

impl<'l, B: Batch> NamedLoaders<'l, B> {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        NamedLoaders { loaders: Vec::new() }
    }

    /// Adds a loader that `fit` uses at the intervals of
    /// [`validate_every`](crate::TrainerBuilder::validate_every).
    #[must_use]
    pub fn add(self, name: impl Into<Arc<str>>, loader: impl Loader<B> + 'l) -> Self {
        self.push(name.into(), None, Box::new(loader))
    }

    /// Adds a loader that `fit` uses at the interval `every`.
    ///
    /// `Every::Steps` and `Every::Fraction` validate within the epoch, as with
    /// [`validate_every`](crate::TrainerBuilder::validate_every). In `validate` and `test`, and in
    /// a [`fast_dev_run`](crate::TrainerBuilder::fast_dev_run), the interval has no effect.
    #[must_use]
    pub fn add_every(self, name: impl Into<Arc<str>>, loader: impl Loader<B> + 'l, every: Every) -> Self {
        self.push(name.into(), Some(every), Box::new(loader))
    }

    /// Divides each batch of each loader among the ranks, as [`Loader::sliced`] does.
    #[must_use]
    pub fn sliced(self) -> Self
    where
        B: Rows + 'l,
    {
        self.each(|loader| Box::new(loader.sliced()))
    }

    /// Declares that each loader yields different batches on each rank, as [`Loader::per_rank`]
    /// does.
    #[must_use]
    pub fn per_rank(self) -> Self
    where
        B: 'l,
    {
        self.each(|loader| Box::new(loader.per_rank()))
    }

    fn each(mut self, wrap: fn(BoxedLoader<'l, B>) -> BoxedLoader<'l, B>) -> Self {
        self.loaders =
            self.loaders.into_iter().map(|own| Owned { loader: wrap(own.loader), ..own }).collect();
        self
    }

    fn push(mut self, name: Arc<str>, every: Option<Every>, loader: Box<dyn Loader<B> + 'l>) -> Self {
        self.loaders.push(Owned { name, every, loader });
        self
    }
}

impl<B: Batch> Default for NamedLoaders<'_, B> {
    fn default() -> Self {
        NamedLoaders::new()
    }
}

impl<B: Batch> Loader<B> for NamedLoaders<'_, B> {
    /// Returns an error, because several loaders have no common pass: each loader has its own.
    fn batches(&mut self, _: u64, _: u64) -> Result<Batches<'_, B>> {
        Err(Error::usage(
            "`NamedLoaders` cannot be wrapped in another loader, because it yields no batches itself: pass it directly to the \
             trainer, and wrap each of its loaders instead",
        ))
    }

    fn named(&mut self) -> Option<Vec<NamedLoader<'_, B>>> {
        let each = self.loaders.iter_mut().map(|Owned { name, every, loader }| NamedLoader {
            name: Some(Arc::clone(name)),
            every: *every,
            loader: &mut **loader,
        });
        Some(each.collect())
    }

    fn is_deterministic(&self) -> bool {
        self.loaders.iter().all(|own| own.loader.is_deterministic())
    }

    /// Sets the share of each loader.
    fn share(&mut self, share: Share) -> Result<()> {
        self.loaders.iter_mut().try_for_each(|own| own.loader.share(share))
    }

    /// Describes each loader, with its name and interval.
    fn fingerprint(&self) -> Option<String> {
        let each = self.loaders.iter().map(|Owned { name, every, loader }| {
            let every = every.map_or_else(String::new, |every| format!(" every {every:?}"));
            let data = loader.fingerprint().unwrap_or_else(|| UNKNOWN_CONTENT.to_owned());
            format!("{name}{every}: {data}")
        });
        Some(each.collect::<Vec<_>>().join("; "))
    }
}

/// Returns the error about a `NamedLoaders` that was passed where a single loader is needed.
pub(crate) fn not_one_loader() -> Error {
    Error::usage(
        "`NamedLoaders` can only be the validation data of `fit` or the data of `validate` and `test`: pass a single \
         loader for training and prediction",
    )
}

impl<B: Batch> fmt::Debug for NamedLoaders<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.loaders.iter().map(|own| (&own.name, own.every))).finish()
    }
}
