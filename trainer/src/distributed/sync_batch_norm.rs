//! [`SyncBatchNorm`]: batch normalization over the rows of all ranks.

use std::borrow::Borrow;

use tch::{Kind, Tensor, nn};

use super::{World, current};
use crate::error::{Error, Result};

/// Batch normalization whose mean and variance are those of the rows of all processes that train
/// together, so that the results do not depend on their number. Created by [`sync_batch_norm`].
///
/// In one process, and in evaluation, it computes what tch's [`nn::BatchNorm`] does. So it does
/// outside of the entry points of a trainer.
///
/// The forward and the backward pass of each layer are collectives. They are called by all ranks if
/// the layer is part of [`Task::pred`](crate::Task::pred) and the loss depends on it:
/// see [`World::differentiable_sum`].
#[derive(Debug)]
pub struct SyncBatchNorm {
    norm: nn::BatchNorm,
    config: nn::BatchNormConfig,
}

/// Creates a batch normalization of inputs of the shape `[rows, features, …]`, over the rows of all
/// [processes](crate::distributed) that train together. The variables have the names and shapes of
/// those of tch's layers, so weights can be exchanged between them.
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
pub fn sync_batch_norm<'a>(
    path: impl Borrow<nn::Path<'a>>,
    features: i64,
    config: nn::BatchNormConfig,
) -> SyncBatchNorm {
    SyncBatchNorm { norm: nn::batch_norm1d(path, features, config), config }
}

impl SyncBatchNorm {
    /// Returns the weights and the running statistics, in tch's layer.
    #[must_use]
    pub fn inner(&self) -> &nn::BatchNorm {
        &self.norm
    }

    /// Normalizes with the mean and the variance of the rows of all ranks.
    fn synchronized(&self, world: &World, xs: &Tensor) -> Result<Tensor> {
        let size = xs.size();
        let &[_, features, ..] = &size[..] else {
            let text =
                format!("batch normalization of a tensor of shape {size:?}: expected [rows, features, …]");
            return Err(Error::usage(text));
        };
        let kind = match xs.kind() {
            Kind::Half | Kind::BFloat16 => Kind::Float,
            kind => kind,
        };
        let input = xs.to_kind(kind);
        let (mean, variance, count) = moments(world, &input, features)?;
        self.update_running(&mean, &variance, count);
        let like_input: Vec<i64> = (0..size.len()).map(|dim| if dim == 1 { features } else { 1 }).collect();
        let scale = (variance + self.config.eps).rsqrt();
        let scale = self.norm.ws.as_ref().map_or(scale.shallow_clone(), |weight| &scale * weight);
        let normalized = (input - mean.view(&like_input[..])) * scale.view(&like_input[..]);
        let normalized = match &self.norm.bs {
            Some(bias) => normalized + bias.view(&like_input[..]),
            None => normalized,
        };
        Ok(normalized.to_kind(xs.kind()))
    }

    /// Updates the running statistics as libtorch does, with the unbiased variance.
    fn update_running(&self, mean: &Tensor, variance: &Tensor, count: f64) {
        let _no_grad = tch::no_grad_guard();
        let momentum = self.config.momentum;
        let unbiased = variance * (count / (count - 1.0).max(1.0));
        for (running, new) in [(&self.norm.running_mean, mean), (&self.norm.running_var, &unbiased)] {
            let mut running = running.shallow_clone();
            let updated = &running * (1.0 - momentum) + new * momentum;
            running.copy_(&updated);
        }
    }
}

/// Returns the mean and the variance of each feature over the rows of all ranks, and the number of
/// values of a feature.
fn moments(world: &World, input: &Tensor, features: i64) -> Result<(Tensor, Tensor, f64)> {
    let (rank, ranks) = (i64::from(world.rank()), i64::from(world.size()));
    let dims: Vec<i64> = (0..input.dim() as i64).filter(|dim| *dim != 1).collect();
    // A row of another rank does not count. It stays in the graph, because the backward pass of each
    // rank takes part in the sum.
    let own = if current::is_borrowed() { input.narrow(0, 0, 0) } else { input.shallow_clone() };
    let count = own.numel() as i64 / features.max(1);
    let (mean, squares) = if count == 0 {
        let zeros = own.sum_dim_intlist(&dims[..], false, input.kind());
        (zeros.shallow_clone(), zeros)
    } else {
        let (variance, mean) = own.var_mean_correction(&dims[..], 0, false);
        (mean, variance * count)
    };
    // One row for each rank: the means, the sums of the squared differences from them, the count.
    let row = Tensor::cat(&[mean, squares, Tensor::full([1], count, (input.kind(), input.device()))], 0);
    let rows = row.unsqueeze(0).constant_pad_nd([0, 0, rank, ranks - 1 - rank]);
    let rows = world.sum_named(&rows, "the statistics of a batch normalization")?;
    let counts = rows.detach().narrow(1, 2 * features, 1);
    let count = counts.sum(Kind::Double).double_value(&[]);
    let (means, squares) = (rows.narrow(1, 0, features), rows.narrow(1, features, features));
    let sum = |rows: Tensor| rows.sum_dim_intlist([0i64].as_slice(), false, input.kind());
    let mean = sum(&means * &counts) / count;
    let variance = sum(squares + (means - &mean).square() * counts) / count;
    Ok((mean, variance, count))
}

impl nn::ModuleT for SyncBatchNorm {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        if train
            && !current::has_failed()
            && let Some(world) = World::current()
        {
            // A forward pass returns a tensor, so the operation that it is part of returns the error.
            match self.synchronized(&world, xs) {
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
