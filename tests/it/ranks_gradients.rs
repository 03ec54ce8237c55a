//! Gradients on several ranks: parameters that modules share, and static graphs.

use trainer::hooks::{DataParallel, StochasticDepth};
use trainer::prelude::*;
use trainer::testing::{Ranks, once};

const DOUBLE: (Kind, Device) = (Kind::Double, Device::Cpu);

/// A language model whose embedding is also the matrix of its output, with a layer that is called
/// twice and one that is never called.
struct Tied {
    vars: nn::VarStore,
    embedding: Tensor,
    layer: nn::Linear,
    unused: Option<Tensor>,
    /// In which epochs a parameter is used that is not tied.
    uses: fn(u64) -> bool,
    epoch: u64,
}

impl Tied {
    fn new(has_unused: bool, uses: fn(u64) -> bool) -> Self {
        let mut vars = nn::VarStore::new(Device::Cpu);
        let embedding = vars.root().zeros("embedding", &[5, 4]);
        let layer = nn::linear(vars.root() / "layer", 4, 4, Default::default());
        let unused = has_unused.then(|| vars.root().ones("unused", &[4]));
        vars.double();
        let unused = unused.map(|_| vars.variables()["unused"].shallow_clone());
        let embedding = {
            drop(embedding);
            vars.variables()["embedding"].shallow_clone()
        };
        tch::no_grad(|| {
            for (_, mut tensor) in vars.variables() {
                let values = Tensor::arange(tensor.numel() as i64, DOUBLE);
                tensor.copy_(&(values.sin() * 0.5).view_as(&tensor));
            }
        });
        Tied { vars, embedding, layer, unused, uses, epoch: 0 }
    }
}

impl Task for Tied {
    type Batch = Tensor;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, tokens: &Tensor, _: Mode) -> Result<Tensor> {
        let inputs = tokens.narrow(1, 0, 3);
        let mut hidden = Tensor::embedding(&self.embedding, &inputs, -1, false, false);
        for _ in 0..2 {
            hidden = hidden.apply(&self.layer).tanh();
        }
        if let Some(unused) = self.unused.as_ref().filter(|_| (self.uses)(self.epoch)) {
            hidden = unused * hidden;
        }
        Ok(hidden.matmul(&self.embedding.tr()))
    }
    fn loss(&mut self, pred: &Tensor, tokens: &Tensor) -> Result<Tensor> {
        let targets = tokens.narrow(1, 1, 3).reshape([-1]);
        Ok(pred.reshape([-1, 5]).log_softmax(-1, Kind::Double).nll_loss(&targets))
    }
}

#[hook]
impl Tied {
    fn before_epoch(&mut self, cx: &mut Cx<BeforeEpoch>) {
        self.epoch = cx.counters().epoch;
    }
}

fn never(_: u64) -> bool {
    false
}

/// Rows of four tokens. The last batch has one row.
fn rows() -> Result<InMemory<Tensor>> {
    let tokens = (Tensor::arange(13 * 4, DOUBLE).square() * 0.31).floor().remainder(5.0);
    Ok(InMemory::new(tokens.to_kind(Kind::Int64).view([13, 4]))?.batch_size(4).shuffle(1))
}

/// Records the gradients of each optimizer step.
#[derive(Default)]
struct Gradients(Vec<Vec<f64>>);

#[hook]
impl Gradients {
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        let mut all: Vec<(String, Tensor)> =
            cx.grads().map(|(name, grad)| (name.to_string(), grad.view([-1]))).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        let all: Vec<Tensor> =
            all.into_iter().filter(|(name, _)| name != "unused").map(|(_, grad)| grad).collect();
        self.0.push(Vec::try_from(Tensor::cat(&all, 0))?);
        Ok(())
    }
}

/// Returns the gradients of all optimizer steps of a fit.
fn gradients(
    parallel: impl FnOnce() -> Option<DataParallel>,
    accumulate: u64,
    has_unused: bool,
    uses: fn(u64) -> bool,
) -> Result<Vec<Vec<f64>>> {
    // The last batch has one row. A rank without a row has a gradient of 0 for each parameter.
    let batches = if has_unused { 3 } else { 4 };
    let mut builder = Trainer::builder(Tied::new(has_unused, uses))
        .limit_train_batches(batches)
        .optimizer(Sgd::new(0.5))
        .epochs(3)
        .accumulate(accumulate)
        .hook(Gradients::default());
    if let Some(parallel) = parallel() {
        builder = builder.hook(parallel);
    }
    let mut trainer = builder.build()?;
    trainer.fit(&mut rows()?, None)?;
    Ok(trainer.hook::<Gradients>()?.0.clone())
}

fn assert_close(one: &[Vec<f64>], other: &[Vec<f64>], what: &str) {
    assert_eq!(one.len(), other.len(), "{what}");
    for (nth, (one, other)) in one.iter().zip(other).enumerate() {
        let differs = one.iter().zip(other).any(|(one, other)| (one - other).abs() > 1e-12);
        assert!(!differs && one.len() == other.len(), "{what}, step {nth}: {one:?} {other:?}");
    }
}

#[test]
fn a_parameter_that_modules_share_has_the_same_gradient_as_in_a_single_process() {
    for accumulate in [1, 3] {
        let alone = once(|| gradients(|| None, accumulate, false, never).unwrap());
        assert!(alone.iter().flatten().any(|value| value.abs() > 1e-3));
        for count in [2, 3] {
            let ranks = Ranks::new(count).run(|| {
                let usual = gradients(|| None, accumulate, false, never)?;
                let fixed = || Some(DataParallel::new().static_graph(true));
                let unused = || Some(DataParallel::new().find_unused(true));
                Ok([
                    usual,
                    gradients(fixed, accumulate, false, never)?,
                    gradients(unused, accumulate, false, never)?,
                ])
            });
            for (rank, all) in ranks.unwrap().iter().enumerate() {
                for (nth, gradients) in all.iter().enumerate() {
                    assert_close(
                        gradients,
                        &alone,
                        &format!("accumulate {accumulate}, rank {rank} of {count}, case {nth}"),
                    );
                }
            }
        }
    }
}

#[test]
fn a_static_graph_may_have_parameters_that_are_never_used() {
    let alone = once(|| gradients(|| None, 1, true, never).unwrap());
    let fixed = || Some(DataParallel::new().static_graph(true));
    for gradients in Ranks::new(2).run(|| gradients(fixed, 1, true, never)).unwrap() {
        assert_close(&gradients, &alone, "unused");
    }
}

#[test]
fn a_graph_that_is_not_static_is_an_error() {
    let cases: [fn(u64) -> bool; 2] = [|epoch| epoch > 0, |epoch| epoch == 0];
    for uses in cases {
        let fixed = || Some(DataParallel::new().static_graph(true));
        for result in Ranks::new(2).results(|| gradients(fixed, 1, true, uses)).unwrap() {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("static"), "{text}");
        }
    }
    let builder = Trainer::builder(Tied::new(false, never)).optimizer(Sgd::new(0.1));
    let built = builder.hook(DataParallel::new().static_graph(true).find_unused(true)).build();
    let text = built.and_then(|mut trainer| trainer.fit(&mut rows().unwrap(), None)).unwrap_err().to_string();
    assert!(text.contains("remove `.find_unused(true)`"), "{text}");
    let builder = Trainer::builder(crate::model::named_task()).optimizer(Sgd::new(0.1));
    let builder = builder.hook(DataParallel::new().static_graph(true)).hook(StochasticDepth::new("*", 0.5));
    let built = builder.build();
    let text =
        built.and_then(|mut trainer| trainer.fit(&mut crate::model::rows(8), None)).unwrap_err().to_string();
    assert!(text.contains("cannot be used with `StochasticDepth`"), "{text}");
}
