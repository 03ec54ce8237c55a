//! Decay at given steps.

use super::{Schedule, check_factor};
use crate::error::Result;
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// A factor that is multiplied by gamma at each milestone: `gammaᵏ`, where k is the number of
/// milestones up to step n.
///
/// Use this when you reproduce a result whose learning rate falls at given steps or epochs.
///
/// Corresponds to `torch.optim.lr_scheduler.MultiStepLR`, which sorts its milestones and applies
/// duplicates twice; here, unsorted and duplicate milestones are errors.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::MultiStep;
///
/// let schedule = MultiStep::new([2, 3], 0.5);
/// let factors: Result<Vec<f64>> = (0..5).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [1.0, 1.0, 0.5, 0.25, 0.25]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "MultiStepLR")]
#[derive(Clone, Debug, PartialEq)]
pub struct MultiStep {
    milestones: Vec<Amount>,
    gamma: f64,
}

impl MultiStep {
    /// Creates the schedule with milestones at these steps, `[30, 80]`, or fractions of the run,
    /// `[0.5, 0.75]`.
    #[must_use]
    pub fn new<L: Into<Amount>>(milestones: impl IntoIterator<Item = L>, gamma: f64) -> Self {
        MultiStep { milestones: milestones.into_iter().map(Into::into).collect(), gamma }
    }
}

impl Schedule for MultiStep {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let gamma = check_factor("the gamma of `MultiStep`", self.gamma)?;
        let mut passed = 0;
        for milestone in &self.milestones {
            passed += u32::from(milestone.steps(run, "MultiStep::new([{}], …)")? <= step);
        }
        Ok(gamma.powf(f64::from(passed)))
    }

    fn check(&self, run: Option<u64>) -> Result<()> {
        self.factor(0, run)?;
        self.milestones
            .windows(2)
            .try_for_each(|pair| pair[0].check_before(pair[1], run, "MultiStep::new([{}], …)"))
    }

    fn mistakes(&self) -> Vec<String> {
        let setting = "MultiStep::new([{}], …)";
        let gamma = check_factor("the gamma of `MultiStep`", self.gamma).err();
        let invalid = self.milestones.iter().filter_map(|milestone| milestone.mistake(setting));
        let pairs = self.milestones.windows(2);
        let disordered = pairs.filter_map(|pair| pair[0].order_mistake(pair[1], setting));
        gamma.iter().map(ToString::to_string).chain(invalid).chain(disordered).collect()
    }

    fn settings(&self) -> SettingList {
        let MultiStep { milestones, gamma } = self;
        SettingList::of("MultiStep").with("milestones", milestones).with("gamma", gamma)
    }
}
