//! What a tape has seen hooks change, and warnings of hooks whose order is an accident.

use std::collections::BTreeMap;

use trainer::hooks::{
    ClipGradNorm, ClipGradValue, Ema, GradientNoise, HyperparameterSchedule, LabelSmoothing, Lookahead,
    MixUp, Sam,
};
use trainer::prelude::*;
use trainer::schedule::Linear;
use trainer::stages;
use trainer::{Tape, TrainerBuilder};

use crate::model::{self, message};
use crate::support::{child_process, device, scratch};

/// Runs a test of this file in a process of its own: the random numbers of libtorch belong to the
/// whole process.
fn alone(test: &str) {
    let output = child_process(test).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Trains two epochs of two batches with a full tape, and returns the trainer and the warnings.
fn run<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>) -> (Trainer<T>, Vec<String>) {
    let folder = scratch("seen");
    let mut trainer = builder.epochs(2).tape(Tape::full().at(folder.join("run.tape"))).build().unwrap();
    let summary = trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    (trainer, summary.warnings)
}

/// What each hook was seen to change, by its name in the table.
fn seen(trainer: &Trainer<impl Task>) -> BTreeMap<String, Option<Vec<&'static str>>> {
    trainer.describe_hooks().rows().map(|row| (row.hook.clone(), row.seen.clone())).collect()
}

/// Multiplies a tensor in place.
fn scale(tensor: &Tensor, factor: f64) {
    let _guard = tch::no_grad_guard();
    let _ = tensor.shallow_clone().g_mul_scalar_(factor);
}

fn variable<P>(cx: &Cx<P>, name: &str) -> Tensor {
    cx.vars().get(name).unwrap().shallow_clone()
}

/// A network with buffers and a named module.
fn normalized() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let fc1 = nn::linear(&root / "fc1", 4, 8, Default::default()).named(&root / "fc1");
    let norm = nn::batch_norm1d(&root / "norm", 8, Default::default());
    let fc2 = nn::linear(&root / "fc2", 8, 3, Default::default());
    let net = nn::seq_t().add(fc1).add(norm).add(fc2);
    let loss = |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels);
    Trainer::builder(Supervised::new(vs, net, loss))
        .optimizer(Sgd::new(0.1).momentum(0.9))
        .discover(Discover::None)
        .seed(1)
}

/// A value with a state, which a method or another hook changes.
#[derive(Default, serde::Deserialize, serde::Serialize)]
struct Counts {
    steps: u64,
    from_outside: u64,
}

#[hook(state)]
impl Counts {
    fn after_opt_step(&mut self, _: &Cx<AfterOptStep>) {
        self.steps += 1;
    }

    /// Replaces the gradients around the step.
    fn around(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        scale(&cx.grad("fc1.weight").unwrap(), 0.5);
        next.run(cx)
    }
}

#[test]
#[ignore = "run by another test in a child process"]
fn every_kind_in_a_separate_process() {
    let train = |name: &str| HookOptions::named(name).only(Phase::Train);
    let second = |name: &str| HookOptions::named(name).only(Phase::Train).ord(1);
    let builder = normalized()
        .hook(Counts::default())
        .on::<AfterStep>(train("weights"), |cx| scale(&variable(cx, "fc1.weight"), 0.9))
        .on::<AfterStep>(second("buffers"), |cx| scale(&variable(cx, "norm.running_mean"), 0.9))
        .on::<BeforeTrainEpoch>(named("trained", 1), |cx| {
            drop(variable(cx, "fc2.bias").set_requires_grad(false));
        })
        .on::<BeforeOptStep>(train("gradients"), |cx| scale(&cx.grad("fc1.bias").unwrap(), 0.5))
        .on::<AfterOptStep>(train("momentum"), |cx| {
            let state = cx.optimizer().unwrap().state();
            state.iter().for_each(|(_, tensor)| scale(tensor, 0.5));
        })
        .on::<BeforeStep>(train("rate"), |cx| {
            let rate = 0.1 / (cx.counters().batches_seen + 2) as f64;
            cx.optimizer_mut().unwrap().groups_mut()[0].set("lr", rate).unwrap();
        })
        .on::<BeforeStep>(second("decay"), |cx| {
            let decay = 0.1 / (cx.counters().batches_seen + 2) as f64;
            cx.optimizer_mut().unwrap().groups_mut()[0].set("weight_decay", decay).unwrap();
        })
        .on::<AfterTransfer>(train("batch"), |cx| {
            let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>().unwrap();
            *inputs = &*inputs * 0.5;
        })
        .on::<AfterPred>(train("prediction"), |cx| scale(&cx.pred::<Tensor>().unwrap().detach(), 2.0))
        .on::<AfterLoss>(train("loss"), |cx| scale(&cx.loss().detach(), 2.0))
        .on::<AfterLoss>(second("scale"), |cx| cx.scale_loss(2.0))
        .on::<AfterModuleForward>(train("output"), |cx| {
            let output = cx.output() * 2.0;
            cx.set_output(output).unwrap();
        })
        .on::<BeforeTransfer>(train("draw"), |_| drop(Tensor::rand([1], (Kind::Float, device()))))
        .on::<BeforeTrainEpoch>("skip", |_| ())
        .on::<AfterZeroGrad>(train("ends"), |cx| cx.end_epoch())
        .on::<AfterTrainEpoch>("stops", |cx| cx.stop("enough"))
        .on::<AfterEpoch>("other", |cx| cx.hook_mut::<Counts>().unwrap().from_outside += 1)
        .on::<AfterBackward>(train("two"), |cx| {
            scale(&cx.grad("fc1.bias").unwrap(), 0.5);
            let _ = Tensor::rand([1], (Kind::Float, device()));
        })
        .observe::<AfterBackward>("observer", |cx| cx.log("loss_again", cx.loss()))
        .on::<AfterFit>("once", |cx| {
            let _ = cx.vars().get("fc1.weight").unwrap().sum(Kind::Float);
        });
    let (trainer, warnings) = run(builder);
    assert_eq!(warnings, [""; 0]);
    let seen = seen(&trainer);
    let expected: [(&str, &[&str]); 23] = [
        ("weights", &["weights"]),
        ("buffers", &["buffers"]),
        ("trained", &["trained parameters"]),
        ("gradients", &["gradients"]),
        ("momentum", &["optimizer state"]),
        ("rate", &["learning rate"]),
        ("decay", &["hyperparameters"]),
        ("batch", &["batch"]),
        ("prediction", &["prediction"]),
        ("loss", &["loss"]),
        ("scale", &["loss scale"]),
        ("output", &["module output"]),
        ("draw", &["random state"]),
        ("skip", &[]),
        ("ends", &["request to end the epoch"]),
        ("stops", &["request to stop"]),
        ("other", &["state of another hook"]),
        ("two", &["gradients", "random state"]),
        ("observer", &[]),
        ("once", &[]),
        ("it::seen::Counts", &["its state"]),
        ("it::seen::Counts::around", &["gradients"]),
        ("trainer::loggers::TapeFile", &["?"]),
    ];
    for (hook, kinds) in expected {
        let kinds = (kinds != ["?"]).then(|| kinds.to_vec());
        assert_eq!(seen[hook], kinds, "{hook}");
    }
    assert_eq!(seen.len(), expected.len(), "{seen:?}");

    let table = trainer.describe_hooks();
    let markdown = table.to_string();
    let header = markdown.lines().next().unwrap();
    assert!(
        header.split('|').map(str::trim).collect::<Vec<_>>()[3..6] == ["Cx", "Changed", "Order"],
        "{header}"
    );
    let cell = |hook: &str| {
        let row = markdown.lines().find(|line| line.contains(&format!("| {hook} "))).unwrap();
        row.split('|').nth(4).unwrap().trim().to_owned()
    };
    assert_eq!([cell("two"), cell("observer")], ["gradients, random state", "nothing"]);
    let json: serde_json::Value = serde_json::from_str(&table.json()).unwrap();
    let hooks: Vec<_> = json["moments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|moment| moment["hooks"].as_array().unwrap())
        .collect();
    let row = |name: &str| hooks.iter().find(|hook| hook["hook"] == name).unwrap()["seen"].clone();
    assert_eq!(row("two"), serde_json::json!(["gradients", "random state"]));
    assert_eq!(row("skip"), serde_json::json!([]));
    assert_eq!(row("trainer::loggers::TapeFile"), serde_json::Value::Null);
}

#[test]
fn the_table_lists_the_changes_seen_for_each_hook() {
    alone("seen::every_kind_in_a_separate_process");
}

#[test]
fn without_a_full_tape_no_changes_are_listed() {
    for tape in [None, Some(Tape::steps(1))] {
        let folder = scratch("unseen");
        let mut builder = model::builder().on::<AfterStep>("idle", |_| ()).max_steps(2);
        if let Some(tape) = tape {
            builder = builder.tape(tape.at(folder.join("run.tape")));
        }
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut model::rows(8), None).unwrap();
        assert!(seen(&trainer).values().all(Option::is_none));
        let table = trainer.describe_hooks();
        assert!(!table.to_string().contains("Changed"));
        assert!(table.json().contains("\"seen\": null"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn changes_outside_of_the_recorded_batches_are_not_listed() {
    let folder = scratch("seen-range");
    let tape = Tape::full().at(folder.join("run.tape")).batches(2..3);
    let builder = model::builder().tape(tape).max_steps(4);
    let builder = builder.on::<AfterStep>("late", |_| ()).on::<BeforeTrainEpoch>("early", |_| ());
    let mut trainer = builder.build().unwrap();
    trainer.fit(&mut model::rows(16), None).unwrap();
    let seen = seen(&trainer);
    assert_eq!((&seen["late"], &seen["early"]), (&Some(vec![]), &None));
    std::fs::remove_dir_all(folder).unwrap();
}

fn halve(cx: &mut Cx<BeforeOptStep>) {
    scale(&cx.grad("fc1.bias").unwrap(), 0.5);
}

/// Defines a type whose hook halves a gradient, with these keys.
macro_rules! halves {
    ($($(#[$key:meta])* $name:ident)+) => {
        $(
            struct $name;

            $(#[$key])*
            impl $name {
                fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) {
                    halve(cx);
                }
            }
        )+
    };
}

struct Limits;

impl HookSet for Limits {}

halves! {
    #[hook] Plain
    #[hook] Other
    #[hook(after = Plain)] AfterPlain
    #[hook(before = Plain)] BeforePlain
    #[hook(after = AfterPlain)] AfterAfter
    #[hook(ord = 1)] Later
    #[hook(in = stages::Clipping)] Clips
    #[hook(in = Limits)] Limited
    #[hook(after = Limits)] AfterLimits
    #[hook(in = Limits, before = AfterSet)] InBoth
    #[hook] AfterSet
}

/// Two methods at one moment.
struct Twice;

#[hook]
impl Twice {
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) {
        halve(cx);
    }

    fn again(&mut self, cx: &mut Cx<BeforeOptStep>) {
        halve(cx);
    }
}

/// Around the optimizer step.
macro_rules! halves_around {
    ($($(#[$key:meta])* $name:ident)+) => {
        $(
            struct $name;

            $(#[$key])*
            impl $name {
                fn halve(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
                    scale(&cx.grad("fc1.bias").unwrap(), 0.5);
                    next.run(cx)
                }
            }
        )+
    };
}

halves_around! {
    #[hook] Outer
    #[hook] Inner
    #[hook(after = Outer)] Inside
}

type Network = Supervised<nn::Sequential, fn(&Tensor, &Tensor) -> Tensor>;

fn warnings(add: impl FnOnce(TrainerBuilder<Network>) -> TrainerBuilder<Network>) -> Vec<String> {
    let loss: fn(&Tensor, &Tensor) -> Tensor =
        |logits, targets| logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0);
    let builder = Trainer::builder(model::named_task_with(loss)).optimizer(Sgd::new(0.1)).seed(1);
    run(add(builder.discover(Discover::None))).1
}

/// A closure that halves a gradient.
fn named(name: &str, ord: i32) -> HookOptions {
    HookOptions::named(name).ord(ord)
}

#[test]
#[ignore = "run by another test in a child process"]
fn orders_in_a_separate_process() {
    // All kinds of order.
    assert_eq!(warnings(|builder| builder.hook(Plain).hook(Later)), [""; 0], "ord");
    assert_eq!(warnings(|builder| builder.hook(Later).hook(Plain)), [""; 0], "ord");
    assert_eq!(warnings(|builder| builder.hook(Clips).hook(Plain)), [""; 0], "stage");
    assert_eq!(warnings(|builder| builder.hook(AfterPlain).hook(Plain)), [""; 0], "after");
    assert_eq!(warnings(|builder| builder.hook(Plain).hook(BeforePlain)), [""; 0], "before");
    let chain = |builder: TrainerBuilder<_>| builder.hook(AfterAfter).hook(AfterPlain).hook(Plain);
    assert_eq!(warnings(chain), [""; 0], "transitive");
    assert_eq!(warnings(|builder| builder.hook(AfterLimits).hook(Limited)), [""; 0], "set");
    assert_eq!(
        warnings(|builder| builder.hook(AfterSet).hook(InBoth).hook(AfterLimits)).len(),
        1,
        "only one"
    );
    assert_eq!(warnings(|builder| builder.hook(Twice)), [""; 0], "methods");
    assert_eq!(warnings(|builder| builder.hook(Plain).hook(Plain)), [""; 0], "values of one type");
    let closures = |ord| {
        move |builder: TrainerBuilder<Network>| {
            builder.on::<BeforeOptStep>("one", halve).on::<BeforeOptStep>(named("other", ord), halve)
        }
    };
    assert_eq!(warnings(closures(1)), [""; 0], "closures with `ord`");
    assert_eq!(warnings(|builder| builder.hook(Inside).hook(Outer)), [""; 0], "around");
    let apart = |builder: TrainerBuilder<_>| {
        builder.on::<BeforeOptStep>("one", halve).on::<AfterBackward>("other", |cx| {
            scale(&cx.grad("fc1.bias").unwrap(), 0.5);
        })
    };
    assert_eq!(warnings(apart), [""; 0], "other moments");
    let values = |builder: TrainerBuilder<_>| {
        builder.on::<BeforeOptStep>("one", halve).on::<BeforeOptStep>("other", |cx| {
            scale(&cx.grad("fc1.weight").unwrap(), 0.5);
        })
    };
    assert_eq!(warnings(values), [""; 0], "other values");
    let batches = |builder: TrainerBuilder<_>| {
        let of_batch = |rest| {
            move |cx: &mut Cx<BeforeOptStep>| {
                if cx.counters().batches_seen % 2 == rest {
                    halve(cx);
                }
            }
        };
        builder.on::<BeforeOptStep>("even", of_batch(0)).on::<BeforeOptStep>("odd", of_batch(1))
    };
    assert_eq!(warnings(batches), [""; 0], "other batches");
    let read = |builder: TrainerBuilder<_>| {
        builder.on::<BeforeOptStep>("one", halve).observe::<BeforeOptStep>("other", |cx| {
            cx.log("norm", cx.grad("fc1.bias").unwrap().norm());
        })
    };
    assert_eq!(warnings(read), [""; 0], "an observer");
    let modules = |builder: TrainerBuilder<_>| {
        let double = |cx: &mut Cx<AfterModuleForward>| {
            let _ = Tensor::rand([1], (Kind::Float, device()));
            let output = cx.output() * 2.0;
            cx.set_output(output).unwrap();
        };
        builder.on::<AfterModuleForward>(HookOptions::named("one").of("fc1"), double)
    };
    assert_eq!(warnings(modules), [""; 0], "one hook at a module");

    // Without an order.
    let [text] = &warnings(closures(0))[..] else { panic!() };
    assert_eq!(
        message(text),
        "the order of two hooks at before_opt_step that change the same values is not defined: `one` (tests/it/seen.rs:_) and `other` \
         (tests/it/seen.rs:_) both changed the gradient of `fc1.bias`. `one` runs first only because it was added to the \
         builder first: write `HookOptions::named(\"other\").ord(1)` to keep this order, or order them the other way around"
    );
    let [text] = &warnings(|builder| builder.hook(Other).hook(Plain))[..] else { panic!() };
    let text = message(text);
    assert!(
        text.contains("`it::seen::Other::before_opt_step` runs first only because it was added"),
        "{text}"
    );
    let advice =
        "write `#[hook(after = it::seen::Other)]` on `it::seen::Plain::before_opt_step` to keep this order";
    assert!(text.contains(advice), "{text}");
    let [text] = &warnings(|builder| builder.hook(Outer).hook(Inner))[..] else { panic!() };
    assert!(
        text.starts_with(
            "the order of two hooks around opt_step that change the same values is not defined: "
        ),
        "{text}"
    );
    assert!(text.contains("`it::seen::Outer::halve` is further outside only because"), "{text}");
    let mixed = |builder: TrainerBuilder<_>| builder.on::<BeforeOptStep>("one", halve).hook(Plain);
    let [text] = &warnings(mixed)[..] else { panic!() };
    assert!(text.contains("write `#[hook(ord = 1)]` on `it::seen::Plain::before_opt_step`"), "{text}");
    let draws = |builder: TrainerBuilder<_>| {
        let draw = |_: &mut Cx<BeforeStep>| drop(Tensor::rand([1], (Kind::Float, device())));
        let train = |name| HookOptions::named(name).only(Phase::Train);
        builder.on::<BeforeStep>(train("one"), draw).on::<BeforeStep>(train("other"), draw)
    };
    let [text] = &warnings(draws)[..] else { panic!() };
    assert!(text.contains("both changed the random state."), "{text}");
    let all = |builder: TrainerBuilder<_>| {
        let all = |cx: &mut Cx<BeforeOptStep>| cx.grads().for_each(|(_, grad)| scale(&grad, 0.5));
        builder.on::<BeforeOptStep>("one", all).on::<BeforeOptStep>("other", all)
    };
    let [text] = &warnings(all)[..] else { panic!() };
    assert!(
        text.contains("changed the gradient of `fc1.bias`, the gradient of `fc1.weight` and 2 more. "),
        "{text}"
    );

    // Built-in hooks have their stages, or the order of the calls.
    let built_in = |builder: TrainerBuilder<_>| {
        builder
            .hook(LabelSmoothing::new(0.1).classes(3))
            .hook(MixUp::new(0.2).classes(3))
            .hook(GradientNoise::new(0.01))
            .hook(HyperparameterSchedule::lr(Linear::to(0.0)))
            .hook(ClipGradValue::new(0.01))
            .hook(ClipGradNorm::new(0.01))
            .hook(Ema::new(0.9))
            .hook(Lookahead::new(2, 0.5))
            .hook(Sam::new(0.05))
    };
    let probabilities = |cx: &mut Cx<AfterTransfer>| {
        let (_, targets) = cx.batch_mut::<(Tensor, Tensor)>().unwrap();
        *targets = targets.one_hot(3).to_kind(Kind::Float);
    };
    let evaluated = HookOptions::named("probabilities").only([Phase::Sanity, Phase::Valid]);
    let found = warnings(|builder| built_in(builder).on::<AfterTransfer>(evaluated, probabilities));
    assert_eq!(found, [""; 0]);
}

#[test]
fn hooks_in_an_accidental_order_cause_one_warning() {
    alone("seen::orders_in_a_separate_process");
}
