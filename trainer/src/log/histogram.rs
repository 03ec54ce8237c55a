//! [`Histogram`]: the distribution of a tensor's elements.

use std::sync::OnceLock;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::libtorch;

/// The distribution of the elements of a tensor, in buckets whose edges grow by 10 % from 1e-12 to
/// 1e20 on both sides of 0, like those of PyTorch's `SummaryWriter.add_histogram`.
///
/// NaN and infinite elements are ignored. Elements beyond the outermost edges are included in the
/// statistics, but not in the buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The smallest element.
    pub min: f64,
    /// The largest element.
    pub max: f64,
    /// The number of elements.
    pub count: u64,
    /// The sum of the elements.
    pub sum: f64,
    /// The sum of the squares of the elements.
    pub sum_squares: f64,
    /// The upper edge of each bucket. The first bucket is always empty: its upper edge is the lower
    /// edge of the first nonempty bucket. There are no buckets if every element is beyond the
    /// outermost edges.
    pub limits: Vec<f64>,
    /// The number of elements in each bucket.
    pub counts: Vec<u64>,
}

/// The number of statistics before the counts in the summary tensor: minimum, maximum, count, sum,
/// sum of squares.
const STATISTICS: usize = 5;

/// The edges of all buckets.
fn edges() -> &'static [f64] {
    static EDGES: OnceLock<Vec<f64>> = OnceLock::new();
    EDGES.get_or_init(|| {
        // Repeated multiplication reproduces PyTorch's edges bit for bit.
        let positive: Vec<f64> = std::iter::successors(Some(1e-12), |edge| Some(edge * 1.1))
            .take_while(|edge| *edge < 1e20)
            .collect();
        let negative = positive.iter().rev().map(|edge| -edge);
        negative.chain([0.0]).chain(positive.iter().copied()).collect()
    })
}

impl Histogram {
    /// Summarizes a tensor on its device, without synchronizing. Returns a vector with the
    /// statistics, followed by the count of each bucket.
    pub(super) fn summarize(tensor: &Tensor) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let tensor = libtorch::dense(tensor, "the tensor")?;
        let device = tensor.device();
        let kind = if device == Device::Mps { Kind::Float } else { Kind::Double };
        if tensor.numel() == 0 {
            // As for a tensor without finite elements.
            let length = i64::try_from(STATISTICS + edges().len() + 2).unwrap_or(i64::MAX);
            return Ok(Tensor::f_zeros([length], (kind, device))?);
        }
        let values = tensor.f_to_kind(kind)?.f_reshape([-1])?;
        let is_finite = values.f_isfinite()?;
        let all_edges = Tensor::f_from_slice(edges())?.f_to_kind(kind)?.f_to_device(device)?;
        let buckets = i64::try_from(edges().len() + 1).unwrap_or(i64::MAX);
        // The bucket index of an element is the number of edges at or below it. Non-finite elements
        // go to an extra bucket.
        let index = values.f_bucketize(&all_edges, false, true)?;
        let others = Tensor::f_full_like(&index, buckets)?;
        let index = index.f_where_self(&is_finite, &others)?;
        let ones = Tensor::f_ones_like(&index)?;
        let counts =
            Tensor::f_zeros([buckets + 1], (Kind::Int64, device))?.f_scatter_add(0, &index, &ones)?;
        let or = |value: f64| values.f_where_scalarother(&is_finite, value);
        let zeroed = or(0.0)?;
        let statistics = [
            or(f64::INFINITY)?.f_min()?,
            or(f64::NEG_INFINITY)?.f_max()?,
            is_finite.f_sum(kind)?,
            zeroed.f_sum(kind)?,
            zeroed.f_square()?.f_sum(kind)?,
        ];
        Ok(Tensor::f_cat(&[Tensor::f_stack(&statistics, 0)?, counts.f_to_kind(kind)?], 0)?)
    }

    /// Builds the histogram from the output of `summarize`. Returns `None` if the tensor had no
    /// finite elements. Returns an error if `summary`, which may come from a checkpoint, has the
    /// wrong length.
    pub(super) fn from_summary(summary: &Tensor) -> Result<Option<Self>> {
        let values = Vec::<f64>::try_from(&summary.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?)?;
        let edges = edges();
        if values.len() != STATISTICS + edges.len() + 2 {
            return Err(Error::usage(
                "the checkpoint contains an invalid histogram: resume from another checkpoint",
            ));
        }
        let (statistics, counts) = values.split_at(STATISTICS);
        if statistics[2] == 0.0 {
            return Ok(None);
        }
        // Drop the counts below the first edge and above the last one.
        let counts: Vec<u64> = counts[1..edges.len()].iter().map(|count| *count as u64).collect();
        let first = counts.iter().position(|count| *count > 0);
        let last = counts.iter().rposition(|count| *count > 0);
        let (limits, counts) = match first.zip(last) {
            None => (Vec::new(), Vec::new()),
            Some((first, last)) => {
                let limits = edges[first..=last + 1].to_vec();
                (limits, [0].into_iter().chain(counts[first..=last].iter().copied()).collect())
            }
        };
        Ok(Some(Histogram {
            min: statistics[0],
            max: statistics[1],
            count: statistics[2] as u64,
            sum: statistics[3],
            sum_squares: statistics[4],
            limits,
            counts,
        }))
    }
}
