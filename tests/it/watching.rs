//! What a hook of a user sees of the run around it: its description, its state, its plan, the graph
//! of the loss, and the lines that are printed.

use std::sync::mpsc::{Sender, channel};

use trainer::prelude::*;
use trainer::testing::Harness;
use trainer::{OnSignal, Vars, divert_lines, eprint_line};

use crate::model;
use crate::support::scratch;

/// Reports how the run ends, as a hook that sends a message would.
struct Reports(Sender<String>);

#[hook]
impl Reports {
    fn after_error(&mut self, cx: &Cx<Main<AfterError>>) {
        let file = cx.run_file().expect("the run has a folder");
        self.0.send(format!("{:?}: {}", file.status, file.error.unwrap_or_default())).unwrap();
    }

    fn teardown(&mut self, cx: &Cx<Main<Teardown>>) {
        let file = cx.run_file().expect("the run has a folder");
        self.0.send(format!("{:?} {}", file.entry, file.settings["epochs"])).unwrap();
    }
}

#[test]
fn a_hook_sees_what_the_description_of_the_run_would_say() {
    let folder = scratch("watching");
    let (send, received) = channel();
    let mut trainer = model::builder()
        .epochs(2)
        .run_folder(folder.join("run"))
        .hook(Reports(send))
        .on::<AfterLoss>("refuse", |cx| if cx.counters().epoch == 1 { Err(Error::msg("no")) } else { Ok(()) })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap_err();
    let seen: Vec<String> = received.try_iter().collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].starts_with("Failed: ") && seen[0].ends_with(": no"), "{seen:?}");
    assert_eq!(seen[1], "\"fit\" 2");
}

#[test]
fn without_a_run_folder_there_is_no_description_but_a_state() {
    let at = |signals| {
        let harness = Harness::small().configure(move |builder| builder.on_signal(signals));
        harness.at(|cx: &mut Cx<AfterStep>| {
            assert!(cx.run_file().is_none());
            let live = cx.live();
            assert_eq!((live.entry.as_str(), live.phase.as_str(), live.batch), ("fit", "train", 1));
            assert!(live.logged.iter().any(|value| value.name == "train/loss"), "{:?}", live.logged);
            assert_eq!(live.planned_steps, cx.plan().steps);
            Ok(cx.handles_signals())
        })
    };
    assert!(!at(OnSignal::Ignore).unwrap());
    assert!(at(OnSignal::Return).unwrap());
}

#[test]
fn the_plan_of_a_run_is_known_to_a_hook() {
    let (send, received) = channel();
    let mut trainer = model::builder()
        .epochs(3)
        .accumulate(2)
        .limit_valid_batches(1)
        .on::<BeforeStep>("note", move |cx| {
            let plan = cx.plan();
            send.send((cx.phase(), plan.batches, plan.epochs, plan.steps, plan.accumulation)).unwrap();
            assert_eq!((plan.is_limited, plan.validates), (cx.phase() != Phase::Train, true));
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();
    let seen: Vec<_> = received.try_iter().collect();
    assert!(seen.contains(&(Phase::Train, Some(2), Some(3), Some(3), 2)), "{seen:?}");
    assert!(seen.contains(&(Phase::Valid, Some(1), Some(3), Some(3), 2)), "{seen:?}");
}

#[test]
fn the_leaves_of_a_loss_are_variables_and_others() {
    let other = Tensor::zeros([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let term = other.shallow_clone();
    let task = model::named_task_with(move |pred: &Tensor, labels: &Tensor| {
        pred.cross_entropy_for_logits(labels) + term.sum(Kind::Float)
    });
    let (send, received) = channel();
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .on::<AfterLoss>("look", move |cx| {
            let leaves = cx.loss_leaves()?;
            let names = leaves.leaves.iter().filter_map(|leaf| leaf.var.as_ref().map(ToString::to_string));
            let mut names: Vec<String> = names.collect();
            names.sort();
            let foreign: Vec<_> = leaves.leaves.iter().filter(|leaf| leaf.var.is_none()).collect();
            assert!(foreign.iter().all(|leaf| leaf.is(&other) && !leaf.is(&other.copy())));
            assert_eq!(foreign[0].changes(), 0);
            send.send((names, foreign.len())).unwrap();
            Ok(())
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(4), None).unwrap();
    let vars = trainer.vars();
    let all: Vec<String> = vars.parameters().map(|var| var.name.clone()).collect();
    assert_eq!(received.try_iter().next().unwrap(), (all, 1));
}

#[test]
fn the_hash_of_variables_follows_names_shapes_and_values() {
    let store = |name: &str, shape: &[i64], value: f64| {
        let vs = nn::VarStore::new(Device::Cpu);
        let _ = vs.root().var(name, shape, nn::Init::Const(value));
        Vars::from_store(&vs).hash()
    };
    let one = store("a", &[2, 3], 1.0);
    assert_eq!(one, store("a", &[2, 3], 1.0));
    for other in [store("b", &[2, 3], 1.0), store("a", &[3, 2], 1.0), store("a", &[2, 3], 2.0)] {
        assert_ne!(one, other);
    }
}

#[test]
fn lines_are_diverted_until_the_last_call_ends() {
    let (send, received) = channel();
    let from = |name: &'static str| {
        let send = send.clone();
        divert_lines(move |line| send.send(format!("{name}: {}", line.text())).unwrap())
    };
    let first = from("first");
    let second = from("second");
    eprint_line("one\u{1b}[2J");
    drop(first);
    eprint_line("two");
    drop(second);
    eprint_line("three");
    // Other tests of the process print, too.
    let own = ["one\\u{1b}[2J", "two", "three"];
    let seen: Vec<String> = received
        .try_iter()
        .filter(|line| own.iter().any(|text| line.ends_with(&format!(": {text}"))))
        .collect();
    assert_eq!(seen, ["second: one\\u{1b}[2J", "second: two"]);
}
