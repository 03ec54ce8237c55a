//! The means and the sums of squared deviations of two variables, which are merged without loss of
//! precision, whatever the offset of the values (Chan, Golub and LeVeque, 1979).

use tch::Tensor;

use super::labels::int;
use super::state::{StateReduction, States};
use crate::error::Result;

/// The name of the state: a tensor of shape `[1, 10, outputs]`, or `[parts, 10, outputs]` after a
/// merge, with the number of samples, the means, the sums of the squared deviations, the sum of the
/// products of the deviations, and the smallest and largest values.
pub(super) const MOMENTS: &str = "moments";

pub(super) const MOMENTS_STATE: (&str, StateReduction) = (MOMENTS, StateReduction::Concat);

/// The moments of two variables, for one output.
#[derive(Clone, Copy)]
pub(super) struct Moments {
    pub(super) count: f64,
    pub(super) mean: [f64; 2],
    pub(super) squares: [f64; 2],
    pub(super) mixed: f64,
    pub(super) min: [f64; 2],
    pub(super) max: [f64; 2],
}

impl Moments {
    /// Returns the sum of the squared deviations of a variable, which is exactly 0 if it is
    /// constant.
    pub(super) fn deviations(&self, variable: usize) -> f64 {
        if self.min[variable] == self.max[variable] { 0.0 } else { self.squares[variable] }
    }
}

/// Adds a batch of two variables of shape `[n, outputs]`, in the dtype of sums.
pub(super) fn update(states: &mut States, x: &Tensor, y: &Tensor) {
    let kind = x.kind();
    let [mean_x, mean_y] = [x, y].map(|values| values.mean_dim(0i64, false, kind));
    let dx = x - &mean_x;
    let dy = y - &mean_y;
    let [xx, yy, xy] =
        [dx.square(), dy.square(), dx * dy].map(|products| products.sum_dim_intlist(0i64, false, kind));
    let count = mean_x.full_like(int(usize::try_from(x.size()[0]).unwrap_or(0)));
    let row = [
        count,
        mean_x,
        mean_y,
        xx,
        yy,
        xy,
        x.amin(0i64, false),
        y.amin(0i64, false),
        x.amax(0i64, false),
        y.amax(0i64, false),
    ];
    let row = Tensor::stack(&row, 0).unsqueeze(0);
    let row = match states.get(MOMENTS) {
        Some(before) => merged(&Tensor::cat(&[before.to_device(row.device()), row], 0)),
        None => row,
    };
    states.set(MOMENTS, row);
}

/// Merges the rows of different parts of the data to one row, on their device.
fn merged(rows: &Tensor) -> Tensor {
    let kind = rows.kind();
    let sum = |terms: Tensor| terms.sum_dim_intlist(0i64, false, kind);
    let of = |row: i64| rows.select(1, row);
    let count = sum(of(0));
    let shares = of(0) / &count;
    // Relative to the mean of the first part, because the means may have a large offset.
    let [mean_x, mean_y] = [1, 2].map(|row| {
        let first = of(row).get(0);
        sum((of(row) - &first) * &shares) + first
    });
    let dx = of(1) - &mean_x;
    let dy = of(2) - &mean_y;
    let xx = sum(of(3) + dx.square() * of(0));
    let yy = sum(of(4) + dy.square() * of(0));
    let xy = sum(of(5) + dx * dy * of(0));
    let [min_x, min_y] = [6, 7].map(|row| of(row).amin(0i64, false));
    let [max_x, max_y] = [8, 9].map(|row| of(row).amax(0i64, false));
    Tensor::stack(&[count, mean_x, mean_y, xx, yy, xy, min_x, min_y, max_x, max_y], 0).unsqueeze(0)
}

/// Reads the moments of each output. Returns an empty vector if there is no data.
pub(super) fn read(states: &States) -> Result<Vec<Moments>> {
    let Some(rows) = states.get(MOMENTS) else { return Ok(Vec::new()) };
    let mut all = states.blank();
    all.set(MOMENTS, merged(&rows));
    let values = all.floats(MOMENTS)?;
    let outputs = values.len() / 10;
    let of_output = |output: usize| {
        let [count, mean_x, mean_y, xx, yy, mixed, min_x, min_y, max_x, max_y] =
            std::array::from_fn(|row| values[row * outputs + output]);
        Moments {
            count,
            mean: [mean_x, mean_y],
            squares: [xx, yy],
            mixed,
            min: [min_x, min_y],
            max: [max_x, max_y],
        }
    };
    Ok((0..outputs).map(of_output).collect())
}
