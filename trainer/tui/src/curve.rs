//! [`Curve`]: the values of a metric over the optimizer steps, thinned out as their number grows.

/// A series drops every other value when it has this many. A terminal shows far fewer.
const MAX_VALUES: usize = 4096;

/// The values of a metric.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// The values of records within passes.
    steps: Series,
    /// The values of whole passes.
    passes: Series,
    last: Option<f64>,
}

impl Curve {
    /// Adds a value after this number of optimizer steps.
    pub(crate) fn add(&mut self, is_of_pass: bool, step: u64, value: f64) {
        let series = if is_of_pass { &mut self.passes } else { &mut self.steps };
        series.add(step, value);
        self.last = Some(value);
    }

    /// Returns the last value, which may be NaN.
    #[must_use]
    pub fn last(&self) -> Option<f64> {
        self.last
    }

    /// Returns the finite values of records within passes, as pairs of optimizer step and value.
    #[must_use]
    pub fn steps(&self) -> &[(f64, f64)] {
        &self.steps.values
    }

    /// Returns the finite values of whole passes, as pairs of optimizer step and value.
    #[must_use]
    pub fn passes(&self) -> &[(f64, f64)] {
        &self.passes.values
    }
}

/// A series of values whose steps do not decrease.
#[derive(Clone, Debug)]
struct Series {
    values: Vec<(f64, f64)>,
    /// The number of added values per kept value.
    stride: u64,
    /// The number of values that were added.
    added: u64,
}

impl Default for Series {
    fn default() -> Self {
        Series { values: Vec::new(), stride: 1, added: 0 }
    }
}

impl Series {
    fn add(&mut self, step: u64, value: f64) {
        let step = step as f64;
        // A run that continues from an earlier step replaces the values after it.
        while self.values.last().is_some_and(|(last, _)| *last > step) {
            self.values.pop();
        }
        let is_kept = self.added.is_multiple_of(self.stride);
        self.added += 1;
        if !is_kept || !value.is_finite() {
            return;
        }
        self.values.push((step, value));
        if self.values.len() == MAX_VALUES {
            let mut nth = 0;
            self.values.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.stride *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_shape_and_a_bounded_size() {
        let mut curve = Curve::default();
        for step in 0..100_000 {
            curve.add(false, step, step as f64);
        }
        let kept = curve.steps();
        assert!((MAX_VALUES / 2..MAX_VALUES).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[0], (0.0, 0.0));
        let gap = kept[1].0 - kept[0].0;
        assert!(kept.windows(2).all(|pair| pair[1].0 - pair[0].0 == gap));
        assert!(100_000.0 - kept.last().unwrap().0 <= gap);
        assert_eq!(curve.last(), Some(99_999.0));
    }

    #[test]
    fn values_from_an_earlier_step_replace_later_ones() {
        let mut curve = Curve::default();
        for (step, value) in [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (2, f64::NAN), (3, 30.0)] {
            curve.add(true, step, value);
        }
        assert_eq!(curve.passes(), [(1.0, 1.0), (2.0, 2.0), (2.0, 20.0), (3.0, 30.0)]);
        assert_eq!((curve.steps(), curve.last()), (&[][..], Some(30.0)));
    }
}
