//! Computations based on the order of scores: areas under curves, and ranks.

use super::average::safe_divide;

/// The numbers of true and false positives of one class at each distinct score or threshold, in
/// descending order of the scores or thresholds.
pub(super) struct Ranking {
    /// For each distinct score or threshold, the number of true positives if the samples with at
    /// least that score are predicted positive.
    tps: Vec<f64>,
    /// For each distinct score or threshold, the number of false positives if the samples with at
    /// least that score are predicted positive.
    fps: Vec<f64>,
}

impl Ranking {
    pub(super) fn new(scores: impl IntoIterator<Item = (f64, bool)>) -> Self {
        let mut sorted: Vec<(f64, bool)> = scores.into_iter().collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut ranking = Ranking { tps: Vec::new(), fps: Vec::new() };
        let mut tp = 0.0;
        let mut fp = 0.0;
        for (nth, (score, is_positive)) in sorted.iter().enumerate() {
            if *is_positive {
                tp += 1.0;
            } else {
                fp += 1.0;
            }
            if sorted.get(nth + 1).is_none_or(|next| next.0 != *score) {
                ranking.tps.push(tp);
                ranking.fps.push(fp);
            }
        }
        ranking
    }

    /// Creates a ranking from the numbers of positives and negatives at or above each threshold.
    /// The thresholds are in descending order.
    pub(super) fn at_thresholds(tps: Vec<f64>, fps: Vec<f64>) -> Self {
        Ranking { tps, fps }
    }

    /// Returns the area under the ROC curve, given the numbers of positives and negatives.
    ///
    /// If `from_zero` is set, the curve begins at the point (0, 0). Otherwise it begins at the
    /// largest threshold, as in torchmetrics with thresholds.
    pub(super) fn auroc(&self, [positives, negatives]: [f64; 2], from_zero: bool) -> f64 {
        let counts = self.fps.iter().zip(&self.tps);
        let points = counts.map(|(fp, tp)| (safe_divide(*fp, negatives), safe_divide(*tp, positives)));
        let points: Vec<(f64, f64)> = from_zero.then_some((0.0, 0.0)).into_iter().chain(points).collect();
        points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * (pair[1].1 + pair[0].1) / 2.0).sum()
    }

    /// Returns the average precision: the sum of the precisions at all thresholds, each weighted by
    /// the increase in recall since the previous one. `recall` computes the recall from the number
    /// of true positives.
    pub(super) fn average_precision(&self, recall: impl Fn(f64) -> f64) -> f64 {
        let mut before = 0.0;
        let mut sum = 0.0;
        for (tp, fp) in self.tps.iter().zip(&self.fps) {
            let recall = recall(*tp);
            let precision = if tp + fp > 0.0 { tp / (tp + fp) } else { 0.0 };
            sum += (recall - before) * precision;
            before = recall;
        }
        sum
    }
}

/// Returns the rank of each value, counted from 1. Equal values share the mean of their ranks.
pub(super) fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut begin = 0;
    while begin < order.len() {
        let value = values[order[begin]];
        let len = order[begin..].iter().take_while(|nth| values[**nth] == value).count().max(1);
        #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
        let rank = (2 * begin + len + 1) as f64 / 2.0;
        order[begin..begin + len].iter().for_each(|nth| ranks[*nth] = rank);
        begin += len;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_their_mean_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(ranks(&[]), [0.0; 0]);
        assert_eq!(ranks(&[f64::NAN, 0.0]), [2.0, 1.0]);
    }

    #[test]
    fn a_perfect_ranking_has_area_1() {
        let ranking = Ranking::new([(0.9, true), (0.8, true), (0.2, false)]);
        assert_eq!(ranking.auroc([2.0, 1.0], true), 1.0);
        assert_eq!(ranking.average_precision(|tp| tp / 2.0), 1.0);
    }
}
