//! Hook values: added, created by discovery, several of one type, and the task itself.

use std::sync::atomic::{AtomicU32, Ordering};

use trainer::MetricInputs;
use trainer::prelude::*;

use crate::model::{self, message};
use crate::support::device;

/// Adds `by` to its count after each epoch.
#[derive(Debug)]
struct Counter {
    by: u64,
    count: u64,
}

#[hook]
impl Counter {
    fn after_epoch(&mut self, _: &mut Cx<AfterEpoch>) {
        self.count += self.by;
    }
}

/// Sums the counts of all `Counter`s.
struct Total(u64);

#[hook(ord = 1)]
impl Total {
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) -> Result<()> {
        self.0 = cx.hooks::<Counter>().map(|counter| counter.count).sum();
        assert_eq!(cx.hooks::<Total>().count(), 0, "the running hook is not included");
        cx.hook_mut::<Counter>()?.by += 1;
        Ok(())
    }
}

#[test]
fn several_values_of_one_hook_type_have_separate_state() {
    let mut trainer = model::builder()
        .epochs(2)
        .hook(Counter { by: 1, count: 0 })
        .hook(Total(0))
        .hook(Counter { by: 10, count: 0 })
        .build()
        .unwrap();
    let expected = ["it::instances::Counter #1", "it::instances::Counter #2", "it::instances::Total"];
    assert_eq!(trainer.describe_hooks().at("after_epoch"), expected);
    trainer.fit(&mut model::rows(4), None).unwrap();
    let counts: Vec<_> = trainer.hooks::<Counter>().map(|counter| counter.count).collect();
    assert_eq!(counts, [1 + 2, 10 + 10]);
    assert_eq!(trainer.hook::<Total>().unwrap().0, 23);
}

static MADE: AtomicU32 = AtomicU32::new(0);

/// A hook that discovery creates with `Default`.
struct Made(&'static str);

impl Default for Made {
    fn default() -> Self {
        MADE.fetch_add(1, Ordering::Relaxed);
        Made("by default")
    }
}

#[hook(auto, ord = 100)]
impl Made {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {}
    fn after_fit(&mut self, _: &mut Cx<AfterFit>) {}
}

#[test]
fn an_auto_hook_is_created_by_discovery_unless_one_is_added() {
    let of_this = || {
        Trainer::builder(model::task())
            .optimizer(Sgd::new(0.1))
            .discover(Discover::crates(["it"]))
            .without("trainer::hooks::Checkup")
    };
    let before = MADE.load(Ordering::Relaxed);
    let with = |trainer: &Trainer<_>| trainer.hooks::<Made>().map(|made| made.0).collect::<Vec<_>>();
    assert_eq!(with(&of_this().build().unwrap()), ["by default"]);
    assert_eq!(MADE.load(Ordering::Relaxed), before + 1, "one value for both of its hooks");
    let added = of_this().hook(Made("by hand")).build().unwrap();
    assert_eq!(with(&added), ["by hand"]);
    assert_eq!(added.describe_hooks().at("after_fit"), ["it::instances::Made"]);
    let without = of_this().without("it::instances::Made").build().unwrap();
    assert!(with(&without).is_empty() && without.describe_hooks().at("after_fit").is_empty());
    assert_eq!(MADE.load(Ordering::Relaxed), before + 1, "created only where it is used");
}

/// A hook that a trainer can have only once.
#[derive(Clone, Copy)]
struct Sole;

#[hook(single)]
impl Sole {
    fn setup(&mut self, _: &mut Cx<Setup>) {}
}

#[test]
fn a_second_value_of_a_hook_marked_single_is_refused() {
    let error = model::builder().hook(Sole).hook(Sole).build().unwrap_err().to_string();
    assert!(
        error.contains("hook `it::instances::Sole` is `single` but was added twice: remove one"),
        "{error}"
    );
}

/// A generic task with hooks.
struct Own<T: Task> {
    inner: T,
    steps: u64,
}

/// A task with hooks that is not generic.
struct Plain {
    vars: nn::VarStore,
    weight: Tensor,
    steps: u64,
}

impl Task for Plain {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        Ok(inputs.matmul(&self.weight))
    }
    fn loss(&mut self, pred: &Tensor, _: &Self::Batch) -> Result<Tensor> {
        Ok(pred.square().mean(Kind::Float))
    }
    fn metric_inputs(&self) -> Option<MetricInputs<Self>> {
        Some(|_, (_, labels), pred| Some((pred.shallow_clone(), labels.shallow_clone())))
    }
}

#[hook]
impl Plain {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        self.steps += 1;
        assert!(cx.hook::<Plain>().is_err(), "the task is not an added hook");
        assert!(!cx.has_metric_inputs() && cx.metric_inputs().is_err(), "the hook holds the task");
    }
    fn stepping(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.run(cx)
    }
}

impl<T: Task> Task for Own<T> {
    type Batch = T::Batch;
    type Pred = T::Pred;
    fn vars(&self) -> &nn::VarStore {
        self.inner.vars()
    }
    fn pred(&mut self, batch: &T::Batch, mode: Mode) -> Result<T::Pred> {
        self.inner.pred(batch, mode)
    }
    fn loss(&mut self, pred: &T::Pred, batch: &T::Batch) -> Result<Tensor> {
        self.inner.loss(pred, batch)
    }
}

#[hook]
impl<T: Task> Own<T> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.steps += 1;
    }
}

fn plain() -> Plain {
    let vars = nn::VarStore::new(device());
    let weight = vars.root().ones("weight", &[4, 1]);
    Plain { vars, weight, steps: 0 }
}

#[test]
fn hooks_of_the_task_run_after_others_of_equal_ord() {
    let mut trainer = Trainer::builder(plain())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterStep>(HookOptions::named("later").ord(1), |_| {})
        .on::<AfterStep>("before it", |_| {})
        .build()
        .unwrap();
    assert_eq!(trainer.describe_hooks().at("after_step"), ["before it", "it::instances::Plain", "later"]);
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(4))).unwrap();
    assert_eq!(trainer.task().steps, 3);
}

#[test]
fn metric_inputs_are_available_except_in_hooks_of_the_task() {
    let mut trainer = Trainer::builder(plain())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterStep>("other", |cx| assert!(cx.has_metric_inputs() && cx.metric_inputs().is_ok()))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(trainer.task().steps, 2);
}

#[test]
fn a_generic_task_registers_its_hooks_with_task_hooks() {
    let task = || Own { inner: model::task(), steps: 0 };
    let builder = |task| Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let error = builder(task()).build().unwrap_err().to_string();
    assert!(
        error.contains(
            "the hooks of the task's generic type `it::instances::Own` are not found automatically"
        ),
        "{error}"
    );
    let mut trainer = builder(task()).task_hooks().build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(trainer.task().steps, 2);
}

/// A task with a hook around `step`, which the task itself computes.
struct Computes(Plain);

impl Task for Computes {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        self.0.vars()
    }
    fn pred(&mut self, batch: &Self::Batch, mode: Mode) -> Result<Tensor> {
        self.0.pred(batch, mode)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Self::Batch) -> Result<Tensor> {
        self.0.loss(pred, batch)
    }
}

#[hook]
impl Computes {
    fn around_step(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        next.run(cx)
    }
}

#[test]
fn a_task_hook_cannot_wrap_an_operation_that_the_task_computes() {
    let error = Trainer::builder(Computes(plain())).discover(Discover::None).build().unwrap_err().to_string();
    insta::assert_snapshot!(message(&error), @"the trainer cannot be built: `it::instances::Computes::around_step` (tests/it/instances.rs:_) wraps `step` and borrows the task throughout, but the task computes inside it: move the hook to a separate type, or to a free function");
}

/// A task with a hook around `eval`, which computes with the task.
struct Evaluates(Plain);

impl Task for Evaluates {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        self.0.vars()
    }
    fn pred(&mut self, batch: &Self::Batch, mode: Mode) -> Result<Tensor> {
        self.0.pred(batch, mode)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Self::Batch) -> Result<Tensor> {
        self.0.loss(pred, batch)
    }
}

#[hook]
impl Evaluates {
    fn around_eval(&mut self, cx: &mut Cx<Eval>, next: Next<Eval>) -> Result<Done> {
        next.run(cx)
    }
}

#[test]
fn a_task_hook_cannot_wrap_an_evaluation_with_the_task() {
    let error =
        Trainer::builder(Evaluates(plain())).discover(Discover::None).build().unwrap_err().to_string();
    assert!(
        error.contains("wraps `eval` and borrows the task throughout, but the task computes inside it"),
        "{error}"
    );
}
