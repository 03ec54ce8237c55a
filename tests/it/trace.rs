//! The order of points and the counters, against a recorded run of trainer-tools.

use std::sync::{Arc, Mutex};

use trainer::prelude::*;

use crate::model;

/// One line of a trace: the point, and what it saw.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    point: String,
    epoch: u64,
    batch_idx: u64,
    optimizer_step: u64,
    samples: u64,
}

/// The lines of a recorded trace; the indented ones are operations, which trainer-tools has no points for.
fn recorded() -> Vec<Line> {
    let text = include_str!("../traces/trainer_tools_fit.txt");
    let lines = text.lines().filter(|line| !line.starts_with(' '));
    lines
        .map(|line| {
            let field = |name: &str| {
                let start = line.find(&format!("{name}=")).unwrap() + name.len() + 1;
                line[start..].split([' ', ']']).next().unwrap().parse().unwrap()
            };
            Line {
                point: line.split_whitespace().next().unwrap().to_owned(),
                epoch: field("epoch"),
                batch_idx: field("batch_idx"),
                optimizer_step: field("opt_step"),
                samples: field("samples"),
            }
        })
        .collect()
}

#[test]
fn points_and_counters_are_those_of_trainer_tools() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut builder = Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
    macro_rules! note {
        ($($marker:ident $name:literal,)*) => {$({
            let seen = Arc::clone(&seen);
            builder = builder.on::<$marker>($name, move |cx| {
                let StepState { epoch, batch_idx, optimizer_step, samples_seen: samples, .. } = cx.step();
                seen.lock().unwrap().push(Line { point: $name.into(), epoch, batch_idx, optimizer_step, samples });
            });
        })*};
    }
    note! {
        BeforeFit "before_fit", BeforeEpoch "before_epoch", BeforeStep "before_step",
        AfterBackward "after_backward", AfterStep "after_step", BeforeValid "before_valid",
        AfterEpoch "after_epoch", AfterFit "after_fit",
    }
    let mut trainer = builder.build().unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();

    let (mut ours, theirs) = (seen.lock().unwrap().clone(), recorded());
    // Defect 16 of trainer-tools: from validation on, its batch_idx is always 0. Ours counts.
    let valid = theirs.iter().position(|line| line.point == "before_valid").unwrap() + 1;
    let counted: Vec<_> = ours[valid..].iter().map(|line| line.batch_idx).collect();
    assert_eq!(counted, [0, 1, 1, 2, 2, 2], "in validation; then the training batches of the epoch");
    for line in &mut ours[valid..] {
        line.batch_idx = 0;
    }
    assert_eq!(ours, theirs);
}
