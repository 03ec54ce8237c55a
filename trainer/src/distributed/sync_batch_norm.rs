//! [`SyncBatchNorm`]: batch normalization over the rows of all ranks.

use std::borrow::Borrow;

use tch::{Kind, Tensor, nn};

use super::links::Links;
use super::{World, current, watch};
use crate::error::{Error, Result};
use crate::libtorch::dist::BatchNorm;
use crate::libtorch::wide_kind;

/// Batch normalization whose mean and variance are computed over the rows of all processes that
/// train together, so that the results do not depend on the number of processes. Created by
/// [`sync_batch_norm`].
///
/// In one process, in evaluation, and outside of the entry points of a trainer, it gives the same
/// results as tch's [`nn::BatchNorm`].
///
/// The forward and the backward pass of each layer are collectives. All ranks take part in them if
/// the layer is called in [`Task::pred`](crate::Task::pred) and the loss depends on it. A rank
/// without rows of its own does not compute [`Task::loss`](crate::Task::loss), so a layer that is
/// called in the loss waits for this rank until the timeout.
///
/// ```
/// use trainer::distributed::sync_batch_norm;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let norm = sync_batch_norm(vs.root() / "norm", 8, Default::default());
/// let output = Tensor::randn([16, 8], (Kind::Float, Device::Cpu)).apply_t(&norm, true);
/// ```
#[derive(Debug)]
pub struct SyncBatchNorm {
    norm: nn::BatchNorm,
    config: nn::BatchNormConfig,
}

/// Creates a batch-normalization layer for inputs of the shape `[rows, features, …]`. It normalizes
/// over the rows of all [processes](crate::distributed) that train together. The variables have the
/// same names and shapes as in tch's layers, so the layers can load each other's weights.
///
/// ```
/// use trainer::distributed::sync_batch_norm;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let root = vs.root();
/// let net = nn::seq_t()
///     .add(nn::conv2d(&root / "conv1", 1, 8, 3, Default::default()))
///     .add(sync_batch_norm(&root / "bn1", 8, Default::default()))
///     .add_fn(Tensor::relu);
/// ```
#[doc(alias = "convert_sync_batchnorm")]
pub fn sync_batch_norm<'a>(
    path: impl Borrow<nn::Path<'a>>,
    features: i64,
    config: nn::BatchNormConfig,
) -> SyncBatchNorm {
    SyncBatchNorm { norm: nn::batch_norm1d(path, features, config), config }
}

impl SyncBatchNorm {
    /// Returns tch's layer, which contains the weights and the running statistics.
    #[must_use]
    pub fn inner(&self) -> &nn::BatchNorm {
        &self.norm
    }

    /// Normalizes with the mean and the variance of the rows of all ranks.
    fn synchronized(&self, links: &Links, xs: &Tensor) -> Result<Tensor> {
        let size = xs.size();
        let &[_, features, ..] = &size[..] else {
            let text = format!(
                "the input of a batch normalization has shape {size:?}: expected `[rows, features, …]`"
            );
            return Err(Error::usage(text));
        };
        let (mean, variance, count) = {
            let _no_grad = tch::no_grad_guard();
            let (mean, variance, count) = moments(links, xs, features)?;
            if count == 1.0 {
                return Err(Error::usage(format!(
                    "a synchronized batch normalization has one value per channel on all ranks together in training mode, because its \
                     input has the shape {size:?} on one rank, and the other ranks have no rows: the variance of one value is undefined; use \
                     larger batches, or leave out an incomplete last batch with `.drop_last(true)`"
                )));
            }
            self.update_running(&mean, &variance, count);
            (mean, variance, count)
        };
        let norm = BatchNorm {
            input: xs,
            weight: self.norm.ws.as_ref(),
            bias: self.norm.bs.as_ref(),
            mean: &mean,
            variance: &variance,
            eps: self.config.eps,
            count,
            counts: !current::is_borrowed(),
        };
        let normalized = links
            .collective(watch::Kind::Layers, "a batch normalization", |group| group.batch_norm(&norm))?;
        // The backward pass of each layer is a collective, even on a rank without a loss.
        if normalized.requires_grad() {
            current::keep_output(&normalized);
        }
        Ok(normalized)
    }

    /// Updates the running statistics as libtorch does, with the unbiased variance.
    fn update_running(&self, mean: &Tensor, variance: &Tensor, count: f64) {
        let momentum = self.config.momentum;
        let unbiased = variance * (count / (count - 1.0));
        for (running, new) in [(&self.norm.running_mean, mean), (&self.norm.running_var, &unbiased)] {
            let mut running = running.shallow_clone();
            running.copy_(&(&running * (1.0 - momentum) + new * momentum));
        }
    }
}

/// Returns the mean and the variance of each feature over the rows of all ranks, and the number of
/// values per feature.
fn moments(links: &Links, input: &Tensor, features: i64) -> Result<(Tensor, Tensor, f64)> {
    let kind = wide_kind(input.kind());
    // One row for each rank: the means, the sums of squared deviations from the mean, the count.
    let rows = Tensor::zeros([i64::from(links.size()), 2 * features + 1], (kind, input.device()));
    let count = if current::is_borrowed() { 0 } else { input.numel() as i64 / features.max(1) };
    if count > 0 {
        let (mean, variance) = input.to_kind(kind).batch_norm_update_stats(None::<&Tensor>, None, 0.0);
        let count = Tensor::full([1], count, (kind, input.device()));
        rows.get(i64::from(links.rank())).copy_(&Tensor::cat(&[mean, variance * &count, count], 0));
    }
    links.sum_in_layer(&rows, "the statistics of a batch normalization")?;
    let means = rows.narrow(1, 0, features);
    let counts = rows.narrow(1, 2 * features, 1);
    let count = counts.sum(Kind::Double).double_value(&[]);
    let mean = (&means * &counts).sum_dim_intlist(0i64, false, kind) / count;
    let deviations = rows.narrow(1, features, features) + (means - &mean).square() * counts;
    let variance = deviations.sum_dim_intlist(0i64, false, kind) / count;
    Ok((mean, variance, count))
}

impl nn::ModuleT for SyncBatchNorm {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        if train
            && !current::has_failed()
            && let Some(links) = World::current().links
        {
            // `forward_t` cannot return an error, so the operation that calls the layer returns it.
            match self.synchronized(&links, xs) {
                Ok(normalized) => return normalized,
                Err(error) => current::fail(error),
            }
        }
        Tensor::batch_norm(
            xs,
            self.norm.ws.as_ref(),
            self.norm.bs.as_ref(),
            Some(&self.norm.running_mean),
            Some(&self.norm.running_var),
            train,
            self.config.momentum,
            self.config.eps,
            self.config.cudnn_enabled,
        )
    }
}
