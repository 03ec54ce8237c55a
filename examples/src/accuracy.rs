//! Classification accuracy as a metric.

use trainer::prelude::*;

/// Logs the fraction of samples that are classified correctly, in evaluation: `valid/accuracy`,
/// `test/accuracy`.
///
/// A program adds it with `.hook(Accuracy)`: a discovered function here would be active in every
/// program of this package.
#[derive(Debug)]
pub struct Accuracy;

#[hook(only(valid, test))]
impl Accuracy {
    /// Logs the fraction of the batch that is classified correctly.
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        let (_, labels) = cx.batch::<(Tensor, Tensor)>()?;
        let classes = cx.pred::<Tensor>()?.argmax(-1, false);
        cx.log("accuracy", classes.eq_tensor(labels).to_kind(Kind::Float).mean(Kind::Float));
        Ok(())
    }
}
