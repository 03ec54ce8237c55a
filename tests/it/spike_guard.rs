//! `SpikeGuard`, and the roll-back that any hook can request: exact after a resume and on several
//! ranks, and visible in what a run leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use trainer::checkpoint::Resume;
use trainer::hooks::{Checkpoint, DataParallel, EarlyStopping, HyperparameterSchedule, SpikeGuard};
use trainer::loggers::{Csv, JsonLines};
use trainer::optim::Sharded;
use trainer::prelude::*;
use trainer::schedule::Linear;
use trainer::testing::{Ranks, once};
use trainer::{CancelToken, TrainerBuilder};

use crate::support::{alone, device, exact_state, scratch};

/// The rows of one epoch: 40 batches of 4.
const ROWS: i64 = 160;

/// Returns rows whose labels are 1,000 times as large in these batches, and NaN in the others.
fn rows(large: &[i64], nan: &[i64]) -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(ROWS * 2, (Kind::Float, device())).view([ROWS, 2]).sin();
    let labels = inputs.sum_dim_intlist(-1, true, None) * 0.5;
    for (batches, factor) in [(large, 1000.0), (nan, f64::NAN)] {
        for batch in batches {
            let _ = labels.narrow(0, batch * 4, 4).g_mul_scalar_(factor);
        }
    }
    InMemory::new((inputs, labels)).unwrap().batch_size(4)
}

fn task() -> impl Task<Batch = (Tensor, Tensor), Pred = Tensor> {
    tch::set_num_threads(1);
    tch::manual_seed(3);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let net = nn::seq_t()
        .add(nn::linear(&root / "fc1", 2, 8, Default::default()))
        .add(nn::batch_norm1d(&root / "bn", 8, Default::default()))
        .add_fn_t(|xs, train| xs.relu().dropout(0.1, train))
        .add(nn::linear(&root / "fc2", 8, 1, Default::default()));
    Supervised::new(vs, net, |pred: &Tensor, target: &Tensor| pred.mse_loss(target, Reduction::Mean))
}

fn guard() -> SpikeGuard {
    SpikeGuard::new().window(6).keep_every(5).threshold(20.0)
}

fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    Trainer::builder(task())
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .hook(HyperparameterSchedule::lr(Linear::to(0.1).over(100)))
}

/// Counts the batches that were trained, as a state that is rolled back.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
struct Trained(Vec<u64>);

#[hook(state, only = train)]
impl Trained {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        self.0.push(cx.counters().batch_idx - 1);
    }
}

fn spiking() -> InMemory<(Tensor, Tensor)> {
    rows(&[12], &[])
}

#[test]
fn the_batches_since_the_kept_state_are_skipped() {
    alone(skips_batches);
}

fn skips_batches() {
    let mut trainer = builder().hook(guard()).hook(Trained::default()).epochs(1).build().unwrap();
    let summary = trainer.fit(&mut spiking(), None).unwrap();
    let rolled_back: Vec<_> = summary.warnings.iter().filter(|text| text.contains("rolled back")).collect();
    assert_eq!(rolled_back.len(), 1, "{:?}", summary.warnings);
    let expected = "rolled back from batch 13 to batch 10 of epoch 0, skipped 3 batches: the loss is ";
    assert!(rolled_back[0].starts_with(expected), "{rolled_back:?}");
    // Batches 10, 11 and 12 count as skipped ones, and the run is the one that never had them.
    let trained: Vec<u64> = (0..10).chain(13..40).collect();
    assert_eq!(trainer.hook::<Trained>().unwrap().0, trained);
    let counters = summary.counters;
    assert_eq!((counters.batch_idx, counters.batches_seen, counters.optimizer_steps), (40, 37, 37));
    assert_eq!(counters.samples_seen, 37 * 4);
    assert_eq!(summary.metrics["train/spike_guard/roll_backs"], 1.0);
    let spikes = trainer.hook::<SpikeGuard>().unwrap().spikes();
    assert!(spikes.len() == 1 && spikes[0].starts_with("batch 12 of epoch 0: the loss is "), "{spikes:?}");
    assert!(spikes[0].contains("the mean of the last 6 batches plus 20 standard deviations"), "{spikes:?}");

    let mut skips = builder()
        .hook(Trained::default())
        .on::<BeforeStep>("skips", |cx| {
            if (10..13).contains(&cx.counters().batch_idx) {
                cx.skip_batch();
            }
        })
        .build()
        .unwrap();
    let other = skips.fit(&mut spiking(), None).unwrap();
    assert_eq!(exact_state(&trainer), exact_state(&skips));
    assert_eq!(summary.metrics["train/loss"].to_bits(), other.metrics["train/loss"].to_bits());
    let [own, theirs] =
        [trainer.optimizer(), skips.optimizer()].map(|optimizer| optimizer.unwrap().groups()[0].lr);
    assert_eq!(own, theirs);
}

#[test]
fn a_non_finite_loss_is_a_spike_even_in_the_first_batch() {
    alone(finds_nan);
}

fn finds_nan() {
    for (nan, warning) in [
        (0, "rolled back from batch 1 to batch 0 of epoch 0, skipped 1 batch: the loss is NaN"),
        (3, "rolled back from batch 4 to batch 0 of epoch 0, skipped 4 batches: the loss is NaN"),
        (39, "rolled back from batch 40 to batch 35 of epoch 0, skipped 5 batches: the loss is NaN"),
    ] {
        let mut trainer = builder().hook(guard()).build().unwrap();
        let summary = trainer.fit(&mut rows(&[], &[nan]), None).unwrap();
        assert!(summary.warnings.iter().any(|text| text == warning), "{:?}", summary.warnings);
        assert!(summary.metrics["train/loss"].is_finite());
    }
}

#[test]
fn too_many_roll_backs_are_an_error_that_lists_them() {
    alone(limits);
}

fn limits() {
    let mut trainer = builder().hook(guard().limit(2)).build().unwrap();
    let error = trainer.fit(&mut rows(&[], &[3, 8, 20, 30]), None).unwrap_err().to_string();
    let expected = "the loss spiked again after 2 roll-backs, which is the limit: lower the learning rate, clip the gradients, or raise \
                    `.limit(…)`; the spikes:\n- batch 3 of epoch 0: the loss is NaN\n- batch 8 of epoch 0: the loss is NaN\n- \
                    batch 20 of epoch 0: the loss is NaN";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_hook_can_roll_back_once_it_has_kept_a_state() {
    alone(rolls_back_by_a_hook);
}

fn rolls_back_by_a_hook() {
    let builder = |keeps: bool| {
        let mut is_done = false;
        builder()
            .on::<BeforeTrainEpoch>("keeps", move |cx| {
                if keeps {
                    cx.keep_state();
                }
            })
            .on::<AfterStep>(HookOptions::named("rolls").only([Phase::Valid]), move |cx| {
                if !std::mem::replace(&mut is_done, true) {
                    cx.roll_back("the validation is bad");
                }
            })
            .validate_every(Every::Steps(10))
    };
    let mut trainer = builder(true).build().unwrap();
    let summary = trainer.fit(&mut rows(&[], &[]), Some(&mut rows(&[], &[]))).unwrap();
    let expected =
        "rolled back from batch 10 to batch 0 of epoch 0, skipped 10 batches: the validation is bad";
    assert!(summary.warnings.iter().any(|text| text == expected), "{:?}", summary.warnings);
    assert_eq!(summary.counters.optimizer_steps, 30);
    // The row of the validation that was undone is not part of the history.
    let steps: Vec<u64> =
        summary.history.points("valid/loss").map(|(counters, _)| counters.optimizer_steps).collect();
    assert_eq!(steps, [10, 20, 30]);

    let mut trainer = builder(false).build().unwrap();
    let error = trainer.fit(&mut rows(&[], &[]), Some(&mut rows(&[], &[]))).unwrap_err().to_string();
    let expected = "a hook called `cx.roll_back(…)` (the validation is bad), but no state of this pass over the training data \
                    is kept: call `cx.keep_state()` at `before_train_epoch`";
    assert!(error.contains(expected), "{error}");
}

/// Fits three epochs with two spikes, and is cancelled after training batch `at` if it is given.
/// Returns what the run leaves; `None` if it was cancelled.
fn left_by(folder: &Path, at: Option<u64>) -> Option<String> {
    let token = CancelToken::new();
    let cancel = token.clone();
    let mut seen = 0;
    let checkpoint = Checkpoint::in_run_folder()
        .every(Every::Steps(3))
        .keep_last(3)
        .on_cancel(at.is_some_and(|at| at % 2 == 0));
    let mut trainer = builder()
        .epochs(2)
        .accumulate(2)
        .run_folder(folder)
        .record_every(Every::Steps(2))
        .validate_every(Every::Steps(7))
        .resume(Resume::Auto)
        .cancel_token(token)
        .hook(checkpoint)
        .hook(guard().keep_every(4).limit(10))
        .hook(EarlyStopping::new("valid/loss", Goal::Minimize).patience(1000))
        .hook(Trained::default())
        .hook(Csv::new())
        .hook(JsonLines::new())
        .tape(trainer::Tape::full())
        .on::<AfterStep>("cancels", move |cx| {
            if cx.phase() == Phase::Train {
                seen += 1;
                if Some(seen) == at {
                    cancel.cancel();
                }
            }
        })
        .build()
        .unwrap();
    let result = trainer.fit(&mut rows(&[17], &[29]), Some(&mut rows(&[], &[])));
    let summary = match result {
        Err(error) if error.is_cancelled() => return None,
        result => result.unwrap(),
    };
    let without_times = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let is_time = |field: &&str| field.len() > 12 && field.starts_with("17") || field.contains("time");
        text.lines()
            .map(|line| line.split(',').filter(|field| !is_time(field)).collect::<Vec<_>>().join(",") + "\n")
            .collect::<String>()
    };
    let names: Vec<_> = newest(folder);
    Some(format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{}\n{:?}\n{:?}",
        exact_state(&trainer),
        summary.counters,
        summary.metrics,
        summary.history,
        trainer.hook::<Trained>().unwrap(),
        without_times("values.csv"),
        trainer.hook::<SpikeGuard>().unwrap().spikes(),
        names
    ))
}

fn newest(folder: &Path) -> Vec<PathBuf> {
    let folder = folder.join("checkpoints");
    trainer::checkpoint::newest(&folder)
        .into_iter()
        .map(|path| path.strip_prefix(&folder).unwrap().to_owned())
        .collect()
}

#[test]
fn a_run_that_is_resumed_before_during_and_after_a_roll_back_ends_like_an_uninterrupted_one() {
    alone(resumes);
}

fn resumes() {
    let parent = scratch("spike-resumed");
    let whole = parent.join("whole");
    let expected = left_by(&whole, None).unwrap();
    let spikes = expected.matches("of epoch").count();
    assert!(spikes >= 3, "{spikes} spikes: {expected}");
    // Before a state is kept, between that and the spike, in its batch, after the roll-back, and in
    // the second epoch.
    for at in [3, 16, 17, 18, 19, 29, 30, 31, 60] {
        let folder = parent.join(at.to_string());
        let mut runs = 0;
        let ended = loop {
            runs += 1;
            assert!(runs < 40, "no progress with a cancellation after {at} batches");
            if let Some(ended) = left_by(&folder, (runs == 1).then_some(at)) {
                break ended;
            }
        };
        assert_eq!(ended, expected, "cancelled after batch {at}");
        let tapes = [&whole, &folder].map(|folder| folder.join("run.tape"));
        let [one, other] = &tapes;
        let difference = trainer_formats::tape::difference(one, other).unwrap();
        assert!(
            difference.is_empty() && difference.end.is_none(),
            "cancelled after batch {at}: {difference}"
        );
    }
    fs::remove_dir_all(&parent).unwrap();
}

#[test]
fn a_roll_back_on_the_tape_is_named_as_the_difference_from_another_run() {
    alone(is_on_the_tape);
}

fn is_on_the_tape() {
    let parent = scratch("spike-tape");
    let run = |name: &str, guarded: bool| {
        let folder = parent.join(name);
        let mut builder = builder().run_folder(&folder).tape(trainer::Tape::full());
        if guarded {
            builder = builder.hook(guard());
        }
        builder.build().unwrap().fit(&mut spiking(), None).unwrap();
        folder.join("run.tape")
    };
    let [one, same, other] =
        [("one", true), ("same", true), ("other", false)].map(|(name, on)| run(name, on));
    assert!(trainer_formats::tape::difference(&one, &same).unwrap().is_empty());
    let difference = trainer_formats::tape::difference(&one, &other).unwrap().to_string();
    assert!(
        difference.contains("the first run was resumed or rolled back, with different values than before"),
        "{difference}"
    );
    fs::remove_dir_all(&parent).unwrap();
}

#[test]
fn run_json_and_the_logs_say_what_was_rolled_back() {
    alone(is_in_the_logs);
}

fn is_in_the_logs() {
    let folder = scratch("spike-logs");
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let steps = Arc::clone(&seen);
    let mut trainer = builder()
        .run_folder(&folder)
        .record_every(Every::Steps(1))
        .hook(guard())
        .hook(Csv::new())
        .on::<AfterRecord>("steps", move |cx| steps.lock().unwrap().push(cx.counters().optimizer_steps))
        .build()
        .unwrap();
    trainer.fit(&mut spiking(), None).unwrap();
    let run = fs::read_to_string(folder.join("run.json")).unwrap();
    assert!(run.contains("rolled back from batch 13 to batch 10 of epoch 0, skipped 3 batches"), "{run}");
    // The hook saw all records, and the file has those of the batches that count.
    assert_eq!(seen.lock().unwrap()[8..16], [9, 10, 11, 12, 13, 11, 12, 13]);
    let rows = fs::read_to_string(folder.join("values.csv")).unwrap();
    let undone = fs::read_to_string(folder.join("values.csv.before-resume-1")).unwrap();
    let of_step =
        |text: &str, step: usize| text.lines().filter(|line| line.starts_with(&format!("{step},"))).count();
    println!("{rows}\n{undone}");
    assert!((1..=37).all(|step| of_step(&rows, step) >= 1), "{rows}");
    assert_eq!(undone.lines().count(), 3, "{undone}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn ranks_roll_back_together() {
    // Half of each batch is on each rank; only rank 1 has a row with NaN.
    let run = |ranks: bool| {
        let inputs = Tensor::arange(ROWS * 2, (Kind::Float, device())).view([ROWS, 2]).sin();
        let labels = inputs.sum_dim_intlist(-1, true, None) * 0.5;
        let _ = labels.narrow(0, 12 * 4 + 3, 1).fill_(f64::NAN);
        let mut data = InMemory::new((inputs, labels))?.batch_size(4);
        let mut builder = builder().hook(guard()).hook(Trained::default());
        if ranks {
            builder = builder.hook(DataParallel::new());
        }
        let mut trainer = builder.build()?;
        let summary = trainer.fit(&mut data, None)?;
        let warnings: Vec<String> =
            summary.warnings.iter().filter(|text| text.contains("rolled back")).cloned().collect();
        let trained = trainer.hook::<Trained>().unwrap().0.clone();
        Ok((exact_state(&trainer), summary.counters.optimizer_steps, warnings, trained))
    };
    let found = Ranks::new(2).run(|| run(true)).unwrap();
    assert_eq!(found[0].0, found[1].0);
    let expected = "rolled back from batch 13 to batch 10 of epoch 0, skipped 3 batches: the loss is NaN";
    for (_, steps, warnings, trained) in found {
        assert_eq!((steps, warnings), (37, vec![expected.to_owned()]));
        assert_eq!(trained, (0..10).chain(13..40).collect::<Vec<u64>>());
    }
}

#[test]
fn ranks_resume_after_a_roll_back() {
    let folder = once(|| scratch("spike-ranks"));
    let path = folder.clone();
    let run = move |name: &str, sharded: bool, cancel_at: Option<u64>| -> Result<Vec<(String, Vec<u64>)>> {
        let token = CancelToken::new();
        let cancel = token.clone();
        let optimizer: Box<dyn Optimizer> =
            if sharded { Box::new(Sharded::new(AdamW::new(0.01))) } else { Box::new(AdamW::new(0.01)) };
        let mut trainer = builder()
            .optimizer(optimizer)
            .hook(guard())
            .hook(DataParallel::new())
            .hook(Checkpoint::new(path.join(name)).every(Every::Steps(1))) // averages the buffers
            .resume(Resume::Auto)
            .cancel_token(token)
            .on::<AfterStep>("cancels", move |cx| {
                if Some(cx.counters().batch_idx) == cancel_at {
                    cancel.cancel();
                }
            })
            .build()?;
        match trainer.fit(&mut rows(&[], &[12]), None) {
            Err(error) if error.is_cancelled() => Ok(Vec::new()),
            result => result.map(|_| exact_state(&trainer)),
        }
    };
    let states = Ranks::new(2)
        .run(|| {
            let whole = run("whole", false, None)?;
            let share = run("share", true, None)?;
            // Before the spike, after a state was kept; and after the roll-back.
            for at in [12, 15] {
                for (sharded, expected) in [(false, &whole), (true, &share)] {
                    let name = format!("{at} {sharded}");
                    // Twice, because the kept state of a resumed run is saved and resumed too.
                    assert!(at == 15 || run(&name, sharded, Some(at - 1))?.is_empty());
                    assert!(run(&name, sharded, Some(at))?.is_empty());
                    assert_eq!(run(&name, sharded, None)?, *expected, "{name}");
                }
            }
            Ok(whole)
        })
        .unwrap();
    assert_eq!(states[0], states[1]);
    fs::remove_dir_all(&folder).unwrap();
}
