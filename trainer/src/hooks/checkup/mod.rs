//! Naming what cannot be meant.

mod fit;
mod rules;

use super::stages;
use crate::libtorch::Flow;
use crate::prelude::own::*;
use fit::Watch;
pub use rules::Rule;

/// Names mistakes that a program can contain without failing: parameters that do not learn, a
/// learning rate of 0, dropout in an evaluation. Each is one warning, which is also in
/// [`Summary::warnings`](crate::Summary::warnings). It is on by default, but not with
/// [`Discover::None`].
///
/// The guide lists the [rules](crate::guide::errors#the-check-up), and what to do about each. To
/// turn them all off, write
///
/// ```
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer =
///     Trainer::builder(task).optimizer(Sgd::new(0.1)).without("trainer::hooks::Checkup").build()?;
/// # Ok(())
/// # }
/// ```
///
/// It records the operators of the first batch of a fit, of the second if the first leaves a
/// question open, and of the first batch of an evaluation. From then on, it looks only at
/// parameters that have had no gradient yet, and it [rests](Cx::rest) if there are none. It does
/// nothing in a [replay](crate::Trainer::replay).
#[derive(Debug, Default)]
pub struct Checkup {
    /// What was seen in the current fit.
    watch: Option<Watch>,
    /// The operators of the current batch.
    flow: Option<Flow>,
    /// The phases whose first batch was recorded in this entry point.
    evaluated: Vec<Phase>,
    /// The parameters that have had a gradient in a fit of this trainer.
    trained: Vec<String>,
}

impl Checkup {
    /// Returns the rules, in the order in which they are decided.
    #[must_use]
    pub fn rules() -> &'static [Rule] {
        rules::ALL
    }
}

#[hook(in = stages::First, ord = i32::MIN, auto, single, may_fail)]
impl Checkup {
    /// Begins to record the operators of a batch, if it is one of the first.
    fn before_step(&mut self, cx: &Cx<BeforeStep>) -> Result<()> {
        self.flow = None; // of a batch that was skipped
        let is_recorded = match cx.phase() {
            _ if cx.is_replay() => false,
            Phase::Train => {
                let watch = match &mut self.watch {
                    Some(watch) => watch,
                    None => self.watch.insert(Watch::begin(cx)?),
                };
                watch.begin_batch(cx)?
            }
            phase => !self.evaluated.contains(&phase),
        };
        if is_recorded {
            self.flow = Flow::start().ok(); // an error within a batch of another trainer
        } else {
            cx.rest();
        }
        Ok(())
    }

    /// Looks at the graph and the gradients.
    fn after_backward(&mut self, cx: &Cx<AfterBackward>) -> Result<()> {
        let is_done = match &mut self.watch {
            Some(watch) => watch.after_backward(self.flow.as_ref(), cx)?,
            None => true,
        };
        if is_done {
            cx.rest();
        }
        Ok(())
    }

    /// Ends the recording, and names layers that computed as in training in an evaluation.
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        let Some(flow) = self.flow.take() else { return cx.rest() };
        if let (Phase::Train, Some(watch)) = (cx.phase(), &mut self.watch) {
            return watch.end_batch();
        }
        self.evaluated.push(cx.phase());
        let layers = flow.layers_for_training();
        if !layers.is_empty() {
            let layers: Vec<_> = layers.iter().map(|layer| format!("`{layer}`")).collect();
            rules::TRAINING_MODE.warn(cx, &[&layers.join(" and "), evaluation(cx.phase())]);
        }
    }

    /// Names what the whole fit has shown.
    fn after_fit(&mut self, cx: &Cx<AfterFit>) -> Result<()> {
        self.watch.as_mut().map_or(Ok(()), |watch| watch.end(&mut self.trained, cx))
    }

    /// Forgets the entry point.
    fn teardown(&mut self, _: &Cx<Teardown>) {
        (self.watch, self.flow) = (None, None);
        self.evaluated.clear();
    }
}

/// Returns the name of an evaluation in a message.
fn evaluation(phase: Phase) -> &'static str {
    if phase == Phase::Test { "test" } else { "validation" }
}
