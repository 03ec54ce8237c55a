//! Tasks with a custom `train_step`: two parts of a model, each with its own optimizer and
//! operation.

use trainer::prelude::*;

use crate::support::device;

mod turns {
    trainer::lifecycle! {
        within step by super::Rivals {
            /// Trains the left part.
            operation left_turn: batch in train {
                /// Between the loss of the left part and its gradients.
                point at_crossing;
            }
            /// Trains the right part.
            operation right_turn: batch in train;
        }
    }
}

use turns::{AtCrossing, LeftTurn, RightTurn};

/// A task with two weights and a loss for each, which has gradients for both weights.
pub(crate) struct Rivals {
    vars: nn::VarStore,
    left: Tensor,
    right: Tensor,
}

pub(crate) fn rivals() -> Rivals {
    let vars = nn::VarStore::new(device());
    let [left, right] = ["left", "right"].map(|name| (vars.root() / name).ones("weight", &[3]));
    Rivals { vars, left, right }
}

impl Rivals {
    fn loss_of(&self, batch: &Tensor, factor: f64) -> Tensor {
        ((&self.left * batch).sum(Kind::Float) * factor + (&self.right * batch).square().sum(Kind::Float))
            .square()
    }
}

impl Task for Rivals {
    type Batch = Tensor;
    type Pred = f64;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, _: &Tensor, _: Mode) -> Result<f64> {
        Ok(1.0)
    }
    fn loss(&mut self, factor: &f64, batch: &Tensor) -> Result<Tensor> {
        Ok(self.loss_of(batch, *factor))
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        step.run::<LeftTurn, _>(|step| {
            let predicted = step.pred()?;
            let scored = step.loss(predicted)?;
            step.fire::<AtCrossing>()?;
            let differentiated = step.backward_of("left", scored)?;
            step.opt_step(differentiated)
        })?;
        let right = step.run::<RightTurn, _>(|step| {
            let predicted = step.pred_with(|_, _| Ok(-2.0))?;
            let scored = step.loss_with(predicted, |task, factor, batch| Ok(task.loss_of(batch, *factor)))?;
            step.log("seen", 3.0)?;
            let differentiated = step.backward_of("right", scored)?;
            step.opt_step(differentiated)
        })?;
        right.ok_or_else(|| Error::msg("skipped"))
    }
}

/// Takes optimizer steps only in every second batch, and counts them by part.
#[derive(Default)]
struct EachSecond {
    left: u64,
    right: u64,
}

#[hook]
impl EachSecond {
    fn accumulate(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        assert_ne!(cx.is_within::<LeftTurn>(), cx.is_within::<RightTurn>());
        if cx.counters().batch_idx.is_multiple_of(2) {
            return Ok(next.skip());
        }
        *(if cx.is_within::<LeftTurn>() { &mut self.left } else { &mut self.right }) += 1;
        next.run(cx)
    }
    fn crossing(&mut self, cx: &mut Cx<AtCrossing>) -> Result<()> {
        assert_eq!(cx.task::<Rivals>()?.left.size(), [3]);
        cx.task_mut::<Rivals>()?.right.requires_grad();
        let error = cx.task::<u8>().map(drop).unwrap_err().to_string();
        assert_eq!(error, "the task is a `it::parts::Rivals`, not a `u8`: use `it::parts::Rivals`");
        Ok(())
    }
}

fn batches() -> Vec<Tensor> {
    (0..6).map(|nth| (Tensor::arange(3, (Kind::Float, device())) + nth).sin()).collect()
}

#[test]
fn each_part_accumulates_only_its_own_gradients() {
    let data = Tensor::stack(&batches(), 0);
    let mut rows = InMemory::new(data).unwrap().batch_size(1);
    let mut trainer = Trainer::builder(rivals())
        .optimizer_of("left", Sgd::new(1e-3))
        .optimizer_of("right", Sgd::new(1e-2))
        .discover(Discover::None)
        .hook(EachSecond::default())
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows, None).unwrap();
    let counted = trainer.hook::<EachSecond>().unwrap();
    assert_eq!((counted.left, counted.right, summary.counters.optimizer_steps), (3, 3, 3));
    let names: Vec<_> = summary.metrics.iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(names, ["train/left_turn/loss", "train/right_turn/loss", "train/seen"]);

    // The expected weights, with each gradient computed for its own part only.
    let own = rivals();
    let mut of_left = own.left.zeros_like();
    let mut of_right = own.right.zeros_like();
    for (nth, batch) in batches().iter().enumerate() {
        for (weight, sum, factor, lr) in
            [(&own.left, &mut of_left, 1.0, 1e-3), (&own.right, &mut of_right, -2.0, 1e-2)]
        {
            let grads =
                Tensor::run_backward(&[own.loss_of(&batch.view([1, 3]), factor)], &[weight], false, false);
            *sum += &grads[0];
            if nth % 2 == 1 {
                let _ = tch::no_grad(|| weight.shallow_clone().g_sub_(&(&*sum / 2.0 * lr)));
                let _ = sum.zero_();
            }
        }
    }
    for (name, expected) in [("left.weight", &own.left), ("right.weight", &own.right)] {
        let found = trainer.vars().get(name).unwrap();
        assert!(found.allclose(expected, 1e-6, 1e-7, false), "{name}: {found} but {expected}");
    }
}

#[test]
fn missing_and_duplicate_optimizers_of_parts_are_reported() {
    let message = |builder: trainer::TrainerBuilder<Rivals>| {
        let mut rows = InMemory::new(Tensor::stack(&batches(), 0)).unwrap();
        let run = |mut trainer: Trainer<Rivals>| trainer.fit(&mut rows, None);
        builder.discover(Discover::None).build().and_then(run).unwrap_err().to_string()
    };
    let builder = || Trainer::builder(rivals());
    let both = || builder().optimizer_of("left", Sgd::new(0.1)).optimizer_of("right", Sgd::new(0.1));
    insta::assert_snapshot!(message(both().optimizer_of("rigth", Sgd::new(0.1))), @r#"the trainer cannot be built: `.optimizer_of("rigth", …)`: no parameter name starts with this; did you mean `right`?"#);
    insta::assert_snapshot!(message(both().optimizer(Sgd::new(0.1))), @r#"the trainer cannot be built: `left.weight` would be updated twice, by `.optimizer_of("left", …)` and by `.optimizer(…)`: assign each parameter to one optimizer"#);
    insta::assert_snapshot!(message(builder().optimizer(Sgd::new(0.1))), @r#"failed at left_turn, epoch 0, batch 0 on a batch of Float [1, 3]: no optimizer is registered for part `left`, only for the whole model: replace `.optimizer(…)` with `.optimizer_of("left", AdamW::new(1e-3))`"#);
    insta::assert_snapshot!(message(builder().optimizer_of("right", Sgd::new(0.1))), @r#"failed at left_turn, epoch 0, batch 0 on a batch of Float [1, 3]: no optimizer is registered for part `left`, only for `right`: add `.optimizer_of("left", AdamW::new(1e-3))`"#);
    let fails = both().on::<AfterPred>("fails", |_| Err(Error::msg("on purpose")));
    let error = message(fails);
    assert!(error.ends_with("failed at after_pred in left_turn, epoch 0, batch 0: on purpose"), "{error}");
}

/// Interleaves the operations of both parts or, with `twice`, uses a stale prediction.
struct Confused {
    inner: Rivals,
    twice: bool,
}

impl Task for Confused {
    type Batch = Tensor;
    type Pred = f64;
    fn vars(&self) -> &nn::VarStore {
        self.inner.vars()
    }
    fn pred(&mut self, batch: &Tensor, mode: Mode) -> Result<f64> {
        self.inner.pred(batch, mode)
    }
    fn loss(&mut self, factor: &f64, batch: &Tensor) -> Result<Tensor> {
        self.inner.loss(factor, batch)
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        if step.task().twice {
            let first = step.pred()?;
            let second = step.pred()?;
            let _ = step.loss(second)?;
            let stale = step.loss(first)?;
            let stale = step.backward_of("left", stale)?;
            return step.opt_step(stale);
        }
        let predicted = step.pred()?;
        let left = step.loss(predicted)?;
        let left = step.backward_of("left", left)?;
        let predicted = step.pred()?;
        let right = step.loss(predicted)?;
        let right = step.backward_of("right", right)?;
        let _ = step.opt_step(left)?;
        step.opt_step(right)
    }
}

#[test]
fn interleaved_parts_step_separately_and_a_stale_token_is_an_error() {
    let rows = || InMemory::new(Tensor::stack(&batches(), 0)).unwrap();
    let build = |twice| {
        let task = Confused { inner: rivals(), twice };
        let builder = Trainer::builder(task).discover(Discover::None);
        builder.optimizer_of("left", Sgd::new(1e-3)).optimizer_of("right", Sgd::new(1e-3)).build().unwrap()
    };
    let mut trainer = build(false);
    trainer.fit(&mut rows(), None).unwrap();
    for var in trainer.vars().iter() {
        assert!(var.tensor.ne(1.0).all().int64_value(&[]) == 1, "{} was updated", var.name);
        assert!(!var.tensor.grad().defined(), "{} has no gradient left", var.name);
    }
    let error = build(true).fit(&mut rows(), None).unwrap_err().to_string();
    assert!(error.contains("stale prediction: it was replaced by a newer one"), "{error}");
}

#[test]
fn a_frozen_parameter_of_a_part_is_not_updated() {
    let task = rivals();
    let frozen = task.vars.root().ones("left", &[3]);
    let _ = frozen.set_requires_grad(false);
    let mut trainer = Trainer::builder(task)
        .optimizer_of("left", Sgd::new(1e-3))
        .optimizer_of("right", Sgd::new(1e-3))
        .discover(Discover::None)
        .build()
        .unwrap();
    trainer.fit(&mut InMemory::new(Tensor::stack(&batches(), 0)).unwrap(), None).unwrap();
    assert!(frozen.eq(1.0).all().int64_value(&[]) == 1);
}

/// Skips the backward pass of a frozen part.
struct SkipsFrozen;

#[hook]
impl SkipsFrozen {
    fn skip(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        let part = format!("{}.weight", cx.part());
        if cx.vars().get(&part)?.requires_grad() { next.run(cx) } else { Ok(next.skip()) }
    }
}

#[test]
fn a_frozen_part_takes_no_optimizer_step() {
    let builder = || {
        Trainer::builder(rivals())
            .optimizer_of("left", Sgd::new(1e-3))
            .optimizer_of("right", Sgd::new(1e-3))
            .discover(Discover::None)
            .on::<BeforeFit>("freeze", |cx| {
                let _ = cx.vars().get("left.weight").unwrap().set_requires_grad(false);
            })
            .on::<BeforeOptStep>("never", |cx| assert_eq!(cx.part(), "right"))
    };
    let rows = || InMemory::new(Tensor::stack(&batches(), 0)).unwrap();
    for accumulate in [1, 3] {
        let mut trainer = builder().accumulate(accumulate).hook(SkipsFrozen).build().unwrap();
        let step = trainer.fit(&mut rows(), None).unwrap().counters;
        assert_eq!((step.batches_seen, step.optimizer_steps), (6, 6 / accumulate));
    }
    let error = builder().build().unwrap().fit(&mut rows(), None).unwrap_err().to_string();
    assert!(
        error.contains("every parameter of this part of the model is frozen: unfreeze one of them"),
        "{error}"
    );
}

/// Skips an operation in the left part only, or in both.
struct Skips {
    operation: &'static str,
    left_only: bool,
}

macro_rules! skip {
    ($($name:ident $Op:ident $op:ident)*) => {
        #[hook]
        impl Skips {
            $(
                #[hook]
                fn $name(&mut self, cx: &mut Cx<$Op>, next: Next<$Op>) -> Result<Done> {
                    let is_meant = self.operation == stringify!($op);
                    if is_meant && !(self.left_only && cx.part() == "right") { Ok(next.skip()) } else { next.run(cx) }
                }
            )*
        }
    };
}

skip! {
    transfer Transfer transfer
    pred Pred pred
    loss Loss loss
    backward Backward backward
    opt_step OptStep opt_step
    zero_grad ZeroGrad zero_grad
}

/// Skips the whole step.
struct SkipsStep(&'static str);

#[hook]
impl SkipsStep {
    fn step(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        if self.0 == "step" { Ok(next.skip()) } else { next.run(cx) }
    }
}

/// Skips the operation that trains the left part.
struct SkipsTurn(&'static str);

#[hook]
impl SkipsTurn {
    fn left_turn(&mut self, cx: &mut Cx<LeftTurn>, next: Next<LeftTurn>) -> Result<Done> {
        if self.0 == "left_turn" { Ok(next.skip()) } else { next.run(cx) }
    }
}

#[test]
fn a_skipped_operation_affects_only_its_own_part() {
    // (skipped operation, in the left part only, optimizer steps of each part, batches)
    let cells = [
        ("none", false, [2, 2], 4),
        ("backward", true, [0, 2], 4),
        ("backward", false, [0, 0], 4),
        ("opt_step", true, [0, 2], 4),
        ("opt_step", false, [0, 0], 4),
        ("zero_grad", true, [2, 2], 4),
        ("zero_grad", false, [2, 2], 4),
        ("left_turn", true, [0, 2], 4),
        ("step", false, [0, 0], 0),
    ];
    let run = |operation: &'static str, left_only: bool| {
        let mut trainer = Trainer::builder(rivals())
            .optimizer_of("left", Sgd::new(1e-3))
            .optimizer_of("right", Sgd::new(1e-3))
            .discover(Discover::None)
            .accumulate(2)
            .limit_train_batches(4)
            .hook(Skips { operation, left_only })
            .hook(SkipsStep(operation))
            .hook(SkipsTurn(operation))
            .on::<AfterFit>("steps", |cx| {
                for part in ["left", "right"] {
                    let steps = cx.steps_of(part).unwrap();
                    cx.log(part, steps);
                }
            })
            .build()
            .unwrap();
        let mut rows = InMemory::new(Tensor::stack(&batches(), 0)).unwrap().batch_size(1);
        let result = trainer.fit(&mut rows, None);
        (trainer, result)
    };
    for (operation, left_only, [left, right], batches) in cells {
        let (trainer, result) = run(operation, left_only);
        let summary = result.unwrap();
        let context = format!("{operation}, the left part only: {left_only}");
        assert_eq!(summary.counters.batches_seen, batches, "{context}");
        assert_eq!(summary.counters.optimizer_steps, left.max(right), "{context}");
        for (part, steps) in [("left", left), ("right", right)] {
            assert_eq!(summary.metrics[&*format!("train/{part}")], steps as f64, "{context}");
            let weight = trainer.vars().get(&format!("{part}.weight")).unwrap();
            assert_eq!(weight.ne(1.0).any().int64_value(&[]) == 1, steps > 0, "{context}: {part} moves");
            assert!(!weight.grad().defined(), "{context}");
        }
    }
    for operation in ["transfer", "pred", "loss"] {
        let error = run(operation, false).1.unwrap_err().to_string();
        assert!(error.starts_with(&format!("hook `it::parts::Skips::{operation}` (")), "{error}");
        assert!(error.contains(&format!("the hook skipped `{operation}`, which must produce a ")), "{error}");
    }
}

/// Handles errors in the operation that trains the left part.
struct Handles;

#[hook]
impl Handles {
    fn handle(&mut self, cx: &mut Cx<LeftTurn>, next: Next<LeftTurn>) -> Result<Done> {
        next.run_or(cx, |_, _| ())
    }
}

#[test]
fn a_handled_backward_failure_drops_only_the_gradients_of_its_part() {
    let grads = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&grads);
    let mut trainer = Trainer::builder(rivals())
        .optimizer_of("left", Sgd::new(1e-3))
        .optimizer_of("right", Sgd::new(1e-3))
        .discover(Discover::None)
        .accumulate(4)
        .limit_train_batches(4)
        .hook(Handles)
        .on::<AfterBackward>("fails", |cx| {
            if cx.part() == "left" && cx.counters().batch_idx == 1 {
                Err(Error::msg("on purpose"))
            } else {
                Ok(())
            }
        })
        .hook(FailsBackward)
        .on::<AfterStep>("look", move |cx| {
            let grads =
                ["left.weight", "right.weight"].map(|name| cx.vars().get(name).unwrap().grad().defined());
            seen.lock().unwrap().push(grads);
        })
        .build()
        .unwrap();
    trainer.fit(&mut InMemory::new(Tensor::stack(&batches(), 0)).unwrap().batch_size(1), None).unwrap();
    // In the second batch, a hook fails after the backward pass; in the third, the pass itself
    // fails; the fourth ends the window.
    assert_eq!(*grads.lock().unwrap(), [[true, true], [true, true], [false, true], [false, false]]);
}

/// Replaces the third backward pass of the left part with an error.
struct FailsBackward;

#[hook]
impl FailsBackward {
    fn fail(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        if cx.part() == "left" && cx.counters().batch_idx == 2 {
            return next.replace(cx, |_| Err("on purpose"));
        }
        next.run(cx)
    }
}
