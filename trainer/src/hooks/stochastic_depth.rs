//! Stochastic depth.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint::{SettingList, Settings};
use crate::modules::Patterns;
use crate::prelude::own::*;

/// Drops residual branches at random in training (Huang et al., *Deep Networks with Stochastic
/// Depth*, 2016).
///
/// Use this when a deep network with residual branches fits the training data but not the
/// validation data.
///
/// The modules are the residual branches `f` of blocks `x + f(x)`. In training, a branch is dropped
/// with probability `p`: its output is zero, so the block is the identity. The outputs of branches
/// that are kept are divided by `1 - p`, so that no scaling is needed in evaluation. The random
/// numbers come from libtorch's generator, whose state is part of checkpoints. With
/// [`per_batch`](StochasticDepth::per_batch), branches of different shapes need different names.
///
/// ```
/// use trainer::hooks::StochasticDepth;
/// use trainer::modules::Name;
/// use trainer::prelude::*;
///
/// #[derive(Debug)]
/// struct Block {
///     branch: Name,
///     fc: nn::Linear,
/// }
///
/// impl nn::Module for Block {
///     fn forward(&self, xs: &Tensor) -> Tensor {
///         xs + self.branch.run(xs, |xs| xs.apply(&self.fc).relu())
///     }
/// }
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let block = |name: &str| {
///     let path = vs.root() / name;
///     Block { fc: nn::linear(&path / "fc", 4, 4, Default::default()), branch: (&path / "branch").into() }
/// };
/// let net = nn::seq().add(block("block1")).add(block("block2"));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(StochasticDepth::linear_decay(["block1.branch", "block2.branch"], 0.5)) // 0.25 and 0.5
///     .build()?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "DropPath")]
#[derive(Debug)]
pub struct StochasticDepth {
    modules: Patterns,
    /// The probability for each pattern.
    probabilities: Vec<f64>,
    per_batch: bool,
    /// The shapes of the branches by name, without the batch dimension. They determine the shape of
    /// the zeros that replace the output of a skipped branch.
    shapes: BTreeMap<String, Shapes>,
    /// Whether the current module is dropped for the entire batch.
    drops: bool,
}

/// The input and output shapes of a branch for one sample.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Shapes {
    input: Vec<i64>,
    output: Vec<i64>,
}

impl StochasticDepth {
    /// Drops each module that has one of these names, with probability `p`. `p` must be at least 0
    /// and below 1.
    #[must_use]
    pub fn new(modules: impl Into<Patterns>, p: f64) -> Self {
        let modules = modules.into();
        let probabilities = vec![p; modules.iter().len().max(1)];
        StochasticDepth { modules, probabilities, per_batch: false, shapes: BTreeMap::new(), drops: false }
    }

    /// Drops modules with probabilities that grow linearly with the depth, up to `p`: the `l`-th of
    /// `L` modules is dropped with probability `l / L · p`. `modules` lists their names, from the
    /// input to the output.
    #[must_use]
    pub fn linear_decay<S: Into<String>>(modules: impl IntoIterator<Item = S>, p: f64) -> Self {
        let modules: Patterns = modules.into_iter().collect();
        let count = modules.iter().len();
        let probabilities = (1..=count).map(|nth| p * nth as f64 / count as f64).collect();
        StochasticDepth { modules, probabilities, per_batch: false, shapes: BTreeMap::new(), drops: false }
    }

    /// Whether a branch is dropped for all samples of a batch or for none, instead of for each
    /// sample independently. This saves time, because a dropped branch is not computed once its
    /// output shape is known. Defaults to `false`. With several processes, each process drops
    /// different branches, so
    /// [`DataParallel::find_unused`](crate::hooks::DataParallel::find_unused) is required.
    #[must_use]
    pub fn per_batch(mut self, per_batch: bool) -> Self {
        self.per_batch = per_batch;
        self
    }

    /// Returns the probability that a module is dropped.
    fn probability(&self, module: &str) -> f64 {
        let pattern = self.modules.iter().position(|pattern| pattern.matches(module));
        self.probabilities[pattern.unwrap_or_default()]
    }
}

#[hook(only = train, state = self.shapes, settings)]
impl StochasticDepth {
    /// Skips a module that is dropped for the entire batch.
    #[hook(of = self.modules)]
    fn leave_out(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
        self.drops = false;
        if !self.per_batch {
            return next.run(cx);
        }
        let p = self.probability(cx.module());
        self.drops = Tensor::rand([1], (Kind::Double, Device::Cpu)).double_value(&[0]) < p;
        let input = cx.input();
        let size = input.size();
        let zeros = match (self.shapes.get(cx.module()), size.split_first()) {
            (Some(shapes), Some((batch, sample))) if self.drops && shapes.input == sample => {
                let size: Vec<i64> = [*batch].into_iter().chain(shapes.output.iter().copied()).collect();
                Tensor::zeros(size, (input.kind(), input.device()))
            }
            // The module is not dropped, or its output shape for this input is not known yet.
            _ => return next.run(cx),
        };
        next.replace(cx, |cx| cx.set_output(zeros))
    }

    /// Drops the output for some samples or for the entire batch, and scales what is kept. With
    /// `per_batch`, returns an error if modules that share a name map the same input shape to
    /// different output shapes.
    #[hook(of = self.modules)]
    fn after_module_forward(&mut self, cx: &mut Cx<AfterModuleForward>) -> Result<()> {
        let output = cx.output();
        let keep = 1.0 - self.probability(cx.module());
        let scaled = if self.per_batch {
            let input = cx.input();
            let size = output.size();
            if let (Some((rows, sample)), Some((batch, output_sample))) =
                (input.size().split_first(), size.split_first())
                && rows == batch
                && input.kind() == output.kind()
            {
                let shapes = Shapes { input: sample.to_vec(), output: output_sample.to_vec() };
                match self.shapes.get(cx.module()) {
                    Some(known) if known.input == shapes.input && known.output != shapes.output => {
                        return Err(Error::msg(format!(
                            "`{}` maps the shape {:?} to {:?} and to {:?}: modules of different shapes need different names",
                            cx.module(),
                            shapes.input,
                            known.output,
                            shapes.output
                        )));
                    }
                    Some(known) if *known == shapes => {}
                    _ => drop(self.shapes.insert(cx.module().to_owned(), shapes)),
                }
            }
            if std::mem::take(&mut self.drops) { output.zeros_like() } else { output / keep }
        } else {
            let size: Vec<i64> =
                output.size().iter().enumerate().map(|(nth, n)| if nth == 0 { *n } else { 1 }).collect();
            let kept = Tensor::rand(size, (Kind::Float, output.device())).lt(keep);
            output * kept.to_kind(output.kind()) / keep
        };
        cx.set_output(scaled)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for StochasticDepth {
    fn settings(&self) -> SettingList {
        let StochasticDepth { modules, probabilities, per_batch, shapes: _, drops: _ } = self;
        SettingList::new().with("modules", modules).with("p", probabilities).with("per_batch", per_batch)
    }

    fn mistakes(&self) -> Vec<String> {
        let invalid = self.probabilities.iter().find(|p| !(0.0..1.0).contains(*p));
        let message = |p: &f64| {
            format!(
                "`StochasticDepth` drops a module with probability {p:?}: expected at least 0.0 and below 1.0"
            )
        };
        invalid.map(message).into_iter().collect()
    }
}
