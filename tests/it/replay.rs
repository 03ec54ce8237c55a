//! Replays: parts of recorded runs, trained again.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trainer::data::NamedLoaders;
use trainer::distributed::World;
use trainer::hooks::{Checkpoint, Ema, GradientNoise, HyperparameterSchedule};
use trainer::loggers::Csv;
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::testing::{Ranks, once};
use trainer::{Replayed, Tape, TrainerBuilder};

use crate::model;
use crate::support::{Random, child_process, device, exact_state, scratch, tree};

/// The number of batches in an epoch.
pub(crate) const EPOCH: u64 = 8;
/// The number of training batches of a run.
pub(crate) const TOTAL: u64 = 5 * EPOCH;

/// A run with dropout, accumulation, noise, averages, a schedule and two validation sets.
pub(crate) fn builder() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    tch::set_num_threads(1);
    tch::manual_seed(11);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let fc1 = nn::linear(&root / "fc1", 4, 8, Default::default()).named(&root / "fc1");
    let net = nn::seq_t()
        .add(fc1)
        .add_fn_t(|hidden, train| hidden.relu().dropout(0.2, train))
        .add(nn::linear(&root / "fc2", 8, 3, Default::default()));
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    Trainer::builder(task)
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .seed(3)
        .epochs(5)
        .accumulate(2)
        .hook(Ema::new(0.9))
        .hook(GradientNoise::new(0.01))
        .hook(HyperparameterSchedule::lr(Cosine::to(0.001).warm_up(3)))
}

pub(crate) fn data() -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(8 * 4 * 4, (Kind::Float, device())).view([32, 4]).sin();
    let labels = Tensor::arange(32, (Kind::Int64, device())).remainder(3);
    InMemory::new((inputs, labels)).unwrap().batch_size(4).shuffle(5)
}

pub(crate) fn held_out() -> NamedLoaders<'static, (Tensor, Tensor)> {
    NamedLoaders::new().add("near", model::rows(8)).add(
        "far",
        InMemory::new((
            Tensor::ones([4, 4], (Kind::Float, device())),
            Tensor::ones([4], (Kind::Int64, device())),
        ))
        .unwrap()
        .batch_size(2),
    )
}

/// What a hook that is added for a replay has seen: the loss of each batch.
type Losses = Arc<Mutex<Vec<(u64, f64)>>>;

fn watched<T: Task>(builder: TrainerBuilder<T>, losses: &Losses) -> TrainerBuilder<T> {
    let losses = Arc::clone(losses);
    builder.observe::<AfterLoss>(HookOptions::named("watch").only(Phase::Train), move |cx| {
        losses.lock().unwrap().push((cx.counters().batches_seen, cx.loss().double_value(&[])));
    })
}

/// Trains in this folder, and returns the loss of each batch.
fn record(folder: &Path, tape: Tape) -> Vec<(u64, f64)> {
    let losses = Losses::default();
    let checkpoint = Checkpoint::in_run_folder().every(Every::Steps(3)).keep_last(100);
    let builder = watched(builder(), &losses).hook(checkpoint).hook(Csv::new()).tape(tape);
    let mut trainer = builder.run_folder(folder).build().unwrap();
    trainer.fit(&mut data().prefetch(2), Some(&mut held_out())).unwrap();
    losses.lock().unwrap().clone()
}

/// Replays batches of the run in this folder with a hook that observes, and returns what it has
/// seen.
fn replayed(folder: &Path, batches: Range<u64>) -> Result<(Replayed, Vec<(u64, f64)>)> {
    let losses = Losses::default();
    let builder = watched(builder(), &losses).hook(Checkpoint::in_run_folder()).hook(Csv::new());
    let mut trainer = builder.run_folder(folder).build()?;
    let replayed = trainer.replay(&mut data().prefetch(1), Some(&mut held_out()), folder, batches)?;
    Ok((replayed, losses.lock().unwrap().clone()))
}

#[test]
#[ignore = "run by another test in a child process"]
fn stretches_in_a_separate_process() {
    let mut random = Random(7);
    for (nth, tape) in [Tape::full(), Tape::steps(3)].into_iter().enumerate() {
        let folder = scratch(&format!("replay-{nth}"));
        let losses = record(&folder, tape);
        assert_eq!(losses.len() as u64, TOTAL);
        let before = tree(&folder);
        for _ in 0..count(40) {
            let start = random.below(TOTAL as usize - 1) as u64;
            let end = start + 1 + random.below((TOTAL - start) as usize) as u64;
            let (replayed, seen) =
                replayed(&folder, start..end).unwrap_or_else(|error| panic!("{start}..{end}: {error}"));
            assert!(
                replayed.compared.unwrap() > 0 || nth == 1 && end - start < 5,
                "{start}..{end}: {replayed:?}"
            );
            assert_eq!(replayed.from.is_some(), start >= 6, "the first checkpoint is after three steps");
            let first = seen[0].0;
            assert!(first <= start && start - first < 6, "{start}..{end} from {first}");
            assert_eq!(seen, losses[first as usize..end.min(TOTAL) as usize], "{start}..{end}");
        }
        assert_eq!(tree(&folder), before, "a replay writes nothing");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// The number of cases: more of them if `TRAINER_SOAK` is set.
pub(crate) fn count(usual: usize) -> usize {
    if std::env::var_os("TRAINER_SOAK").is_some() { 10 * usual } else { usual }
}

#[test]
fn any_stretch_of_a_run_is_replayed_bit_for_bit_without_changing_files() {
    let output = child_process("replay::stretches_in_a_separate_process").output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Counts the points that fire at the end of an entry point.
fn counted<T: Task>(builder: TrainerBuilder<T>, counts: &Arc<[AtomicU64; 5]>) -> TrainerBuilder<T> {
    let count = |nth: usize| {
        let counts = Arc::clone(counts);
        move || {
            counts[nth].fetch_add(1, Ordering::Relaxed);
        }
    };
    let [fit, cancel, error, teardown, epoch] = std::array::from_fn(count);
    builder
        .observe::<AfterFit>("fit", move |_| fit())
        .observe::<AfterCancel>("cancel", move |_| cancel())
        .observe::<AfterError>("error", move |_| error())
        .observe::<Teardown>("teardown", move |_| teardown())
        .observe::<AfterEpoch>("epoch", move |_| epoch())
}

/// A hook that writes, and says so.
#[derive(Default)]
struct Writer(Arc<AtomicU64>);

#[hook(writes)]
impl Writer {
    fn after_step(&mut self, _cx: &Cx<AfterStep>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "run by another test in a child process"]
fn ends_in_a_separate_process() {
    let folder = scratch("replay-ends");
    record(&folder, Tape::full());
    let before = tree(&folder);
    // Batches, and how often `after_fit`, `after_cancel`, `after_error`, `teardown` and
    // `after_epoch` fire.
    for (batches, expected) in [
        (7..8, [0, 0, 0, 1, 0]),
        (7..9, [0, 0, 0, 1, 1]),
        (12..16, [0, 0, 0, 1, 0]),
        (13..20, [0, 0, 0, 1, 1]),
        (30..TOTAL, [0, 0, 0, 1, 1]),
        (30..2 * TOTAL, [1, 0, 0, 1, 2]),
        (0..TOTAL + 1, [1, 0, 0, 1, 5]),
    ] {
        let counts = Arc::default();
        let written = Arc::default();
        let mut trainer = counted(builder(), &counts)
            .run_folder(&folder)
            .hook(Writer(Arc::clone(&written)))
            .hook(Checkpoint::in_run_folder().every(Every::Steps(1)))
            .observe::<AfterStep>("request", |cx| {
                assert!(cx.is_replay() && cx.run_folder().is_none());
                cx.save_checkpoint("somewhere");
            })
            .build()
            .unwrap();
        trainer.replay(&mut data(), Some(&mut held_out()), &folder, batches.clone()).unwrap();
        assert_eq!(counts.each_ref().map(|count| count.load(Ordering::Relaxed)), expected, "{batches:?}");
        assert_eq!(written.load(Ordering::Relaxed), 0, "{batches:?}");
        // The trainer stands at the end of the batches, and goes on writing nothing.
        trainer.validate(&mut held_out()).unwrap();
        let state = exact_state(&trainer);
        trainer.replay(&mut data(), Some(&mut held_out()), &folder, 6..7).unwrap();
        trainer.replay(&mut data(), Some(&mut held_out()), &folder, 7..batches.end).unwrap();
        assert_eq!(exact_state(&trainer), state, "{batches:?}");
        assert_eq!(written.load(Ordering::Relaxed), 0, "{batches:?}");
    }
    assert_eq!(tree(&folder), before);
    refused(&folder);
    changed_programs(&folder);
    without_a_tape();
    assert!(!Path::new("somewhere").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Mistakes, and what they are told.
fn refused(folder: &Path) {
    let error = |path: &Path, batches: Range<u64>| replayed(path, batches).unwrap_err().to_string();
    let text = error(folder, 5..5);
    assert_eq!(text, "a replay of the training batches 5..5 is empty: expected a range with a batch");
    let text = error(folder, TOTAL..TOTAL + 1);
    assert_eq!(text, "the run has only 40 training batches: there is nothing to replay in 40..41");
    let text = error(&folder.join("nothing"), 5..6);
    assert!(text.ends_with("nothing: there is no folder at this path: pass the folder of a run"), "{text}");
    let empty = scratch("replay-empty");
    let text = error(&empty, 5..6);
    assert!(
        text.contains("neither a checkpoint from before the first batch of the replay nor a tape"),
        "{text}"
    );
    let checkpoint = folder.join("checkpoints/step-00000012");
    assert!(replayed(&checkpoint, 12..14).unwrap().0.compared.unwrap() > 0, "the path of a checkpoint");
    assert!(replayed(&folder.join("checkpoints"), 12..14).unwrap().0.compared.unwrap() > 0, "of its folder");
    let text = error(&checkpoint, 11..14);
    assert!(
        text.ends_with(
            "this checkpoint was written after the first batch of the replay: pass the folder of the run"
        ),
        "{text}"
    );
    std::fs::remove_dir_all(&empty).unwrap();
    // A trainer that has trained cannot begin anew.
    let mut trainer = builder().build().unwrap();
    trainer.fit(&mut data(), Some(&mut held_out())).unwrap();
    let text = trainer.replay(&mut data(), Some(&mut held_out()), folder, 1..2).unwrap_err().to_string();
    assert!(text.starts_with("this replay begins at the start of the run"), "{text}");
}

/// Programs that compute something else than the run did.
fn changed_programs(folder: &Path) {
    let replay = |builder: TrainerBuilder<_>| {
        builder
            .build()
            .unwrap()
            .replay(&mut data(), Some(&mut held_out()), folder, 15..20)
            .unwrap_err()
            .to_string()
    };
    let text = replay(builder().on::<BeforeOptStep>("halve", |cx| {
        if cx.counters().batches_seen == 17 {
            let _guard = tch::no_grad_guard();
            let _ = cx.grad("fc2.bias").unwrap().g_mul_scalar_(0.5);
        }
    }));
    assert!(text.contains("cannot resume exactly from this checkpoint"), "{text}");
    assert!(
        text.contains("the hook `halve at before_opt_step` was missing when the checkpoint was written"),
        "{text}"
    );
    let halved = builder().allow_inexact_resume(true).on::<BeforeOptStep>("halve", |cx| {
        if cx.counters().batches_seen == 17 {
            let _guard = tch::no_grad_guard();
            let _ = cx.grad("fc2.bias").unwrap().g_mul_scalar_(0.5);
        }
    });
    let text = replay(halved);
    assert!(
        text.contains(
            "train batch 17 (epoch 2): only the second run has the hook `halve` at before_opt_step"
        ),
        "{text}"
    );
    let text = replay(builder().observe::<AfterLoss>(HookOptions::named("draw").only(Phase::Train), |cx| {
        if cx.counters().batches_seen == 16 {
            let _ = Tensor::rand([1], (Kind::Float, device()));
        }
    }));
    assert!(
        text.contains("train batch 16 (epoch 2): only the second run has the hook `draw` at after_loss"),
        "{text}"
    );
}

/// Without a tape, a replay begins with a checkpoint, and compares nothing.
fn without_a_tape() {
    let folder = scratch("replay-tapeless");
    let checkpoint = Checkpoint::in_run_folder().every(Every::Steps(3)).keep_last(100);
    builder()
        .run_folder(&folder)
        .hook(checkpoint)
        .build()
        .unwrap()
        .fit(&mut data(), Some(&mut held_out()))
        .unwrap();
    let (found, seen) = replayed(&folder, 13..15).unwrap();
    assert_eq!(found.compared, None);
    assert_eq!(found.from.unwrap(), folder.join("checkpoints/step-00000012"));
    assert_eq!(seen.last().unwrap().0, 14);
    // A damaged checkpoint is skipped.
    std::fs::write(folder.join("checkpoints/step-00000012/model.safetensors"), "damaged").unwrap();
    assert_eq!(replayed(&folder, 13..15).unwrap().0.from.unwrap(), folder.join("checkpoints/step-00000006"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_replay_ends_at_the_requested_batch_and_writes_nothing() {
    let output = child_process("replay::ends_in_a_separate_process").output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Each rank replays its own part.
#[cfg(target_os = "linux")]
#[test]
fn two_ranks_replay_stretches_of_their_run() {
    let folder = once(|| scratch("replay-ranks"));
    let run = folder.join("run");
    Ranks::new(2)
        .run(|| {
            let checkpoint = Checkpoint::in_run_folder().every(Every::Steps(3)).keep_last(100);
            let builder = builder().hook(checkpoint).tape(Tape::full()).run_folder(&run);
            builder.build()?.fit(&mut data(), Some(&mut held_out())).map(drop)
        })
        .unwrap();
    let before = once(|| tree(&run).len() as u64);
    for batches in [0..3, 7..9, 14..25, 39..40] {
        Ranks::new(2)
            .run(|| {
                let mut trainer = builder().build()?;
                let replayed = trainer.replay(&mut data(), Some(&mut held_out()), &run, batches.clone())?;
                assert!(replayed.compared.unwrap() > 0, "{batches:?}");
                Ok(())
            })
            .unwrap();
    }
    // On rank 1, a hook changes something.
    let error = Ranks::new(2).run(|| {
        let rank = World::from_env()?.rank();
        let mut trainer = builder()
            .observe::<AfterLoss>("draw", move |_| {
                if rank == 1 {
                    let _ = Tensor::rand([1], (Kind::Float, device()));
                }
            })
            .build()?;
        trainer.replay(&mut data(), Some(&mut held_out()), &run, 14..16).map(drop)
    });
    let text = error.unwrap_err().to_string();
    once(|| {
        assert!(text.contains("only the second run has the hook `draw` at after_loss"), "{text}");
        assert_eq!(tree(&run).len() as u64, before);
        std::fs::remove_dir_all(&folder).unwrap();
    });
}
