//! Tapes: the first difference of two runs, and tapes of resumed runs.

use std::path::{Path, PathBuf};

use trainer::distributed::World;
use trainer::hooks::{Checkpoint, ClipGradNorm, Ema, GradientNoise, HyperparameterSchedule};
use trainer::prelude::*;
use trainer::schedule::Linear;
use trainer::testing::{Ranks, once};
use trainer::{Tape, TrainerBuilder};
use trainer_formats::tape::{Difference, Tape as TapeReader, difference};

use crate::model;
use crate::support::{cancelled_at, child_process, device, scratch};

/// What one run does differently from others.
#[derive(Clone, Copy, Default)]
struct Program {
    /// A hook draws a random number in this batch.
    draw: Option<u64>,
    /// A hook changes one bit of a gradient in this batch.
    gradient_bit: Option<u64>,
    /// A hook changes a weight through `data()` in this batch.
    through_data: Option<u64>,
    /// A hook changes the rate in this batch.
    rate: Option<u64>,
    /// Two hooks are in the other order.
    swapped: bool,
    /// A hook that observes is there.
    observer: bool,
    /// A hook that changes gradients is at another moment.
    moved: bool,
    clipped: bool,
    ema: Option<f64>,
    mixed: Option<f64>,
    scheduled: Option<f64>,
    weight_decay: Option<f64>,
    loss_factor: Option<f64>,
    /// The first value of this row is another one.
    sample: Option<i64>,
    /// Rows are in the order of this seed.
    order: Option<u64>,
    seed: Option<u64>,
    skip: Option<u64>,
    stop: Option<u64>,
    initial: bool,
    accumulated: Option<u64>,
    batch_size: Option<usize>,
    state: Option<u64>,
    threads: Option<i32>,
}

/// Halves the gradient of one variable.
fn halve(cx: &mut Cx<BeforeOptStep>) {
    let _guard = tch::no_grad_guard();
    let _ = cx.grad("fc2.bias").unwrap().g_mul_scalar_(0.5);
}

/// Clamps the gradient of one variable.
fn clamp(cx: &mut Cx<BeforeOptStep>) {
    let _guard = tch::no_grad_guard();
    let _ = cx.grad("fc2.bias").unwrap().clamp_(-1e-3, 1e-3);
}

/// A hook with a state that nothing else depends on.
#[derive(Default, serde::Deserialize, serde::Serialize)]
struct Counts {
    batches: u64,
    #[serde(skip)]
    jump_at: Option<u64>,
}

#[hook(state)]
impl Counts {
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        self.batches += if self.jump_at == Some(cx.counters().batches_seen) { 2 } else { 1 };
    }
}

impl Program {
    fn builder(self, folder: &Path, tape: Tape) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
        let factor = self.loss_factor.unwrap_or(1.0);
        let task =
            model::named_task_with(move |logits, labels| logits.cross_entropy_for_logits(labels) * factor);
        if self.initial {
            let _guard = tch::no_grad_guard();
            let _ = task.vars().variables()["fc1.bias"].shallow_clone().get(0).g_add_scalar_(1e-6);
        }
        let optimizer = AdamW::new(0.01).weight_decay(self.weight_decay.unwrap_or(0.01));
        let mut builder = Trainer::builder(task)
            .optimizer(optimizer)
            .discover(Discover::None)
            .seed(self.seed.unwrap_or(3))
            .epochs(6)
            .accumulate(self.accumulated.unwrap_or(1))
            .run_folder(folder)
            .hook(Ema::new(self.ema.unwrap_or(0.99)))
            .tape(tape);
        if self.swapped {
            builder = builder.on::<BeforeOptStep>("clamp", clamp).on::<BeforeOptStep>("halve", halve);
        } else {
            builder = builder.on::<BeforeOptStep>("halve", halve).on::<BeforeOptStep>("clamp", clamp);
        }
        if self.observer {
            builder = builder.observe::<AfterLoss>("watch", |cx| cx.log("twice", cx.loss() * 2.0));
        }
        if self.clipped {
            builder = builder.hook(ClipGradNorm::new(1e-3));
        }
        if let Some(alpha) = self.mixed {
            builder = builder.hook(GradientNoise::new(alpha));
        }
        if let Some(end) = self.scheduled {
            builder = builder.hook(HyperparameterSchedule::lr(Linear::to(end)));
        }
        if let Some(jump) = self.state {
            builder = builder.hook(Counts { batches: 0, jump_at: (jump > 0).then_some(jump) });
        }
        let at = |cx: u64, batch: Option<u64>| Some(cx) == batch;
        let Program { draw, gradient_bit, through_data, rate, skip, stop, .. } = self;
        let noise = |cx: &Tensor| {
            let _guard = tch::no_grad_guard();
            let mut first = cx.view([-1]).get(0);
            let _ = first.g_add_scalar_(1e-6);
        };
        builder = match self.moved {
            false => builder.on::<AfterBackward>("noise", move |cx| {
                if at(cx.counters().batches_seen, gradient_bit) {
                    noise(&cx.grad("fc1.bias").unwrap());
                }
            }),
            true => builder.on::<BeforeOptStep>(HookOptions::named("noise").ord(-5), move |cx| {
                if at(cx.counters().batches_seen, gradient_bit) {
                    noise(&cx.grad("fc1.bias").unwrap());
                }
            }),
        };
        builder
            .on::<BeforeStep>("change", move |cx| {
                let batch = cx.counters().batches_seen;
                if at(batch, draw) {
                    let _ = Tensor::rand([1], (Kind::Float, device()));
                }
                if at(batch, through_data) {
                    noise(&cx.vars().get("fc1.weight").unwrap().data());
                }
                if at(batch, rate) {
                    cx.optimizer_mut().unwrap().groups_mut()[0].set("lr", 0.005).unwrap();
                }
                if at(batch, skip) {
                    cx.skip_batch();
                }
            })
            .on::<AfterStep>("end", move |cx| {
                if cx.phase() == Phase::Train && at(cx.counters().batches_seen, stop) {
                    cx.stop("early");
                }
            })
    }

    fn data(self) -> InMemory<(Tensor, Tensor)> {
        let inputs = Tensor::arange(32 * 4, (Kind::Float, device())).view([32, 4]).sin();
        if let Some(row) = self.sample {
            let _ = inputs.get(row).get(0).g_add_scalar_(1e-3);
        }
        let labels = Tensor::arange(32, (Kind::Int64, device())).remainder(3);
        let data = InMemory::new((inputs, labels)).unwrap().batch_size(self.batch_size.unwrap_or(4));
        data.shuffle(self.order.unwrap_or(5))
    }

    /// Trains, and returns the path of the tape.
    fn run(self, name: &str, tape: Tape) -> PathBuf {
        let folder = scratch(name);
        let mut trainer = self.builder(&folder, tape).build().unwrap();
        tch::set_num_threads(self.threads.unwrap_or(1));
        trainer.fit(&mut self.data(), Some(&mut model::rows(8))).unwrap();
        folder.join("run.tape")
    }
}

/// Pairs of programs, and the beginning of the answer.
fn pairs() -> Vec<(&'static str, Program, Program, &'static str)> {
    let p = Program::default();
    vec![
        (
            "draw",
            p,
            Program { draw: Some(17), ..p },
            "train batch 17 (epoch 2): hook `change` at before_step (",
        ),
        (
            "bit",
            p,
            Program { gradient_bit: Some(30), ..p },
            "train batch 30 (epoch 3): hook `noise` at after_backward (",
        ),
        (
            "rate",
            p,
            Program { rate: Some(20), ..p },
            "train batch 20 (epoch 2): hook `change` at before_step (",
        ),
        (
            "skip",
            p,
            Program { skip: Some(9), ..p },
            "train batch 9 (epoch 1): hook `change` at before_step (",
        ),
        ("stop", p, Program { stop: Some(12), ..p }, "train batch 11 (epoch 1): hook `end` at after_step ("),
        (
            "swapped",
            p,
            Program { swapped: true, ..p },
            "train batch 0 (epoch 0): the hook `halve` at before_opt_step (",
        ),
        (
            "clipped",
            p,
            Program { clipped: true, ..p },
            "train batch 0 (epoch 0): only the second run has the hook `trainer::hooks::ClipGradNorm",
        ),
        (
            "unclipped",
            Program { clipped: true, ..p },
            p,
            "train batch 0 (epoch 0): only the first run has the hook `trainer::hooks::ClipGradNorm",
        ),
        ("ema", p, Program { ema: Some(0.98), ..p }, "train batch "),
        (
            "mixed",
            p,
            Program { mixed: Some(0.3), ..p },
            "train batch 0 (epoch 0): only the second run has the hook `trainer::hooks::GradientNoise",
        ),
        (
            "alpha",
            Program { mixed: Some(0.2), ..p },
            Program { mixed: Some(0.3), ..p },
            "train batch 0 (epoch 0): hook `trainer::hooks::GradientNoise",
        ),
        (
            "schedule",
            Program { scheduled: Some(0.1), ..p },
            Program { scheduled: Some(0.2), ..p },
            "train batch ",
        ),
        (
            "decay",
            p,
            Program { weight_decay: Some(0.02), ..p },
            "The runs begin `fit` with different values: `weight_decay` of group 0",
        ),
        (
            "loss",
            p,
            Program { loss_factor: Some(1.01), ..p },
            "train batch 0 (epoch 0): operation `loss` had equal inputs",
        ),
        ("sample", p, Program { sample: Some(7), ..p }, "train batch "),
        (
            "order",
            p,
            Program { order: Some(6), ..p },
            "train batch 0 (epoch 0): the loaders of the two runs yield different data",
        ),
        (
            "seed",
            p,
            Program { seed: Some(4), ..p },
            "The runs begin `fit` with different values: the random state",
        ),
        (
            "initial",
            p,
            Program { initial: true, ..p },
            "The runs begin `fit` with different values: `fc1.bias`",
        ),
        (
            "moved",
            Program { gradient_bit: Some(3), ..p },
            Program { gradient_bit: Some(3), moved: true, ..p },
            "train batch 3 (epoch 0): the hook `noise` at after_backward (",
        ),
        ("accumulated", p, Program { accumulated: Some(2), ..p }, "train batch "),
        (
            "batch_size",
            p,
            Program { batch_size: Some(8), ..p },
            "train batch 0 (epoch 0): the loaders of the two runs yield different data",
        ),
        (
            "state",
            Program { state: Some(0), ..p },
            Program { state: Some(14), ..p },
            "train batch 13 (epoch 1): hook `it::tape::Counts::after_step` at after_step (",
        ),
    ]
}

/// More pairs, with the same change in other batches and other settings.
fn more_pairs() -> Vec<(String, Program, Program, String)> {
    let p = Program::default();
    let mut pairs = Vec::new();
    for batch in [0, 7, 9, 25, 47] {
        let at = format!("train batch {batch} (epoch {}): ", batch / 8);
        let b = Some(batch);
        let changed = "hook `change` at before_step (";
        pairs.push((format!("draw-{batch}"), p, Program { draw: b, ..p }, format!("{at}{changed}")));
        pairs.push((format!("rate-{batch}"), p, Program { rate: b, ..p }, format!("{at}{changed}")));
        pairs.push((format!("skip-{batch}"), Program { skip: b, ..p }, p, format!("{at}{changed}")));
        let noise = "hook `noise` at after_backward (";
        pairs.push((format!("bit-{batch}"), p, Program { gradient_bit: b, ..p }, format!("{at}{noise}")));
        let counts = "hook `it::tape::Counts::after_step` at after_step (";
        let [one, other] = [0, batch + 1].map(|jump| Program { state: Some(jump), ..p });
        pairs.push((format!("state-{batch}"), one, other, format!("{at}{counts}")));
    }
    for (nth, batch) in [(0, 4), (1, 30)] {
        let [one, other] = [None, Some(batch)].map(|stop| Program { stop, ..p });
        let end = "hook `end` at after_step (";
        let at = format!("train batch {} (epoch {}): {end}", batch - 1, (batch - 1) / 8);
        pairs.push((format!("stop-{nth}"), one, other, at));
    }
    for row in [0, 15, 31] {
        let loaders = "the loaders of the two runs yield different data: the batch".to_owned();
        pairs.push((format!("row-{row}"), p, Program { sample: Some(row), ..p }, loaders));
    }
    for size in [2, 16] {
        let loaders = "train batch 0 (epoch 0): the loaders of the two runs yield different data".to_owned();
        pairs.push((format!("size-{size}"), p, Program { batch_size: Some(size), ..p }, loaders));
    }
    for factor in [0.5, 1.000_01] {
        let loss = "train batch 0 (epoch 0): operation `loss` had equal inputs".to_owned();
        pairs.push((format!("loss-{factor}"), p, Program { loss_factor: Some(factor), ..p }, loss));
    }
    let [scheduled, constant] = [Some(0.5), None].map(|scheduled| Program { scheduled, ..p });
    let only =
        "train batch 1 (epoch 0): only the first run has the hook `trainer::hooks::HyperparameterSchedule";
    pairs.push(("unscheduled".into(), scheduled, constant, only.into()));
    let decay = "train batch 1 (epoch 0): hook `trainer::hooks::Ema::after_step` at after_step (";
    for state in [3, 9] {
        let [one, other] = [Some(state), Some(20 + state)].map(|state| Program { state, ..p });
        let counts = format!("train batch {} (epoch {}): hook `it::tape::Counts", state - 1, (state - 1) / 8);
        pairs.push((format!("jump-{state}"), one, other, counts));
    }
    pairs.push(("decay-of-ema".into(), p, Program { ema: Some(0.5), ..p }, decay.into()));
    pairs
}

fn compare(one: impl AsRef<Path>, other: impl AsRef<Path>) -> Difference {
    difference(one, other).unwrap()
}

/// The random numbers of libtorch belong to the whole process.
#[test]
#[ignore = "run by another test in a child process"]
fn pairs_in_a_separate_process() {
    let mut wrong = Vec::new();
    let named = pairs()
        .into_iter()
        .map(|(name, one, other, expected)| (name.to_owned(), one, other, expected.to_owned()));
    let all: Vec<_> = named.chain(more_pairs()).collect();
    println!("{} pairs", all.len());
    for (name, one, other, expected) in all {
        let one = one.run(&format!("tape-{name}-1"), Tape::full());
        let other = other.run(&format!("tape-{name}-2"), Tape::full());
        let text = compare(one, other).to_string();
        println!("── {name}\n{text}");
        // Rows are shuffled, so that the batch of a row is not known.
        let is_named =
            if name.starts_with("row") { text.contains(&expected) } else { text.starts_with(&expected) };
        if !is_named {
            wrong.push(format!("{name}: expected {expected}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    equal_runs();
    coarse_tapes();
    resumed_runs();
    tapes_that_are_cut_off();
    smaller_ranges();
    // The folders of this process.
    let own = format!("trainer-tests-{}-tape", std::process::id());
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&own) {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}

fn equal_runs() {
    for nth in 0..10 {
        let program = Program {
            ema: Some(0.9),
            mixed: (nth % 2 == 0).then_some(0.1),
            clipped: nth % 3 == 0,
            accumulated: Some(1 + nth % 4),
            scheduled: (nth % 5 == 0).then_some(0.1),
            seed: Some(nth),
            order: Some(nth),
            ..Program::default()
        };
        for tape in [Tape::full(), Tape::full().paranoid(true), Tape::steps(1 + nth)] {
            let [one, other] =
                ["1", "2"].map(|name| program.run(&format!("tape-equal-{name}"), tape.clone()));
            let found = compare(&one, other);
            assert!(found.is_empty() && found.end.is_none() && found.compared > 4, "{tape:?}: {found}");
            assert_eq!(found.to_string(), format!("The runs are equal in all {} changes.\n", found.compared));
        }
    }
    // An observer changes nothing, and a write through `data()` is found by itself if all is read.
    let plain = Program::default().run("tape-plain", Tape::full());
    let watched = Program { observer: true, state: Some(3), ..Program::default() };
    let watched = watched.run("tape-watched", Tape::full());
    let found = compare(plain, watched);
    assert!(found.is_empty(), "{found}");
    assert!(found.to_string().contains("Only the second run has these hooks"), "{found}");
    // With another number of threads, the results may be equal for a model of this size.
    let [one, other] = [1, 2].map(|threads| {
        Program { threads: Some(threads), ..Program::default() }
            .run(&format!("tape-threads-{threads}"), Tape::full())
    });
    let found = compare(one, other);
    assert_eq!(found.circumstances["threads"], ["1", "2"]);
    assert!(
        found.is_empty() || found.to_string().contains("which can be the reason:\n  threads: 1; 2"),
        "{found}"
    );
    let [one, other] = [None, Some(21)].map(|through_data| {
        Program { through_data, ..Program::default() }
            .run(&format!("tape-data-{through_data:?}"), Tape::full().paranoid(true))
    });
    let text = compare(one, other).to_string();
    assert!(text.starts_with("train batch 21 (epoch 2): hook `change` at before_step"), "{text}");
}

fn coarse_tapes() {
    let [one, other] = [None, Some(30)].map(|gradient_bit| {
        Program { gradient_bit, ..Program::default() }
            .run(&format!("tape-coarse-{gradient_bit:?}"), Tape::steps(7))
    });
    let text = compare(&one, other).to_string();
    assert!(text.starts_with("The runs differ within the training batches 28 to 34: "), "{text}");
    assert!(
        text.contains("`trainer diff --replay`, or record them with `TRAINER_TAPE=full:28..35`"),
        "{text}"
    );
    let full = Program::default().run("tape-level", Tape::full());
    let error = difference(one, full).unwrap_err().to_string();
    assert!(error.ends_with("this tape is full, but the first one has the state after every 7 batches: record both at the same level"), "{error}");
}

fn resumed_runs() {
    for (nth, tape) in [Tape::full(), Tape::steps(5)].into_iter().enumerate() {
        let whole = Program::default().run(&format!("tape-whole-{nth}"), tape.clone());
        for batch in [3, 13, 21] {
            let folder = scratch(&format!("tape-cut-{nth}-{batch}"));
            let program = |at| {
                let checkpoint = Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(2));
                let builder = Program::default().builder(&folder, tape.clone()).hook(checkpoint);
                cancelled_at(at, builder).build().unwrap()
            };
            program(Some(batch)).fit(&mut Program::default().data(), Some(&mut model::rows(8))).unwrap_err();
            let mut second = {
                let checkpoint = Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(2));
                let builder = Program::default().builder(&folder, tape.clone()).hook(checkpoint);
                cancelled_at(None, builder).resume(Resume::Auto).build().unwrap()
            };
            second.fit(&mut Program::default().data(), Some(&mut model::rows(8))).unwrap();
            let found = compare(&whole, folder.join("run.tape"));
            assert!(found.is_empty() && found.end.is_none(), "{nth} {batch}: {found}");
        }
    }
}

/// A process can be killed while it writes.
fn tapes_that_are_cut_off() {
    let path = Program::default().run("tape-cut", Tape::full());
    let content = std::fs::read(&path).unwrap();
    let whole = TapeReader::open(&path).unwrap().count();
    for length in (15..2000).chain(content.len() - 500..content.len()) {
        std::fs::write(&path, &content[..length]).unwrap();
        let events: Result<Vec<_>, _> = TapeReader::open(&path).unwrap().collect();
        let events = events.unwrap_or_else(|error| panic!("{length}: {error}"));
        assert!(events.len() <= whole, "{length}");
    }
    std::fs::write(&path, b"something else").unwrap();
    assert!(TapeReader::open(&path).unwrap_err().to_string().ends_with("run.tape: this is not a tape"));
}

fn smaller_ranges() {
    let program = Program { gradient_bit: Some(30), ..Program::default() };
    let [one, other] = [Program::default(), program].map(|program| {
        program.run(&format!("tape-range-{:?}", program.gradient_bit), Tape::full().batches(28..35))
    });
    let text = compare(one, other).to_string();
    assert!(text.starts_with("train batch 30 (epoch 3): hook `noise` at after_backward"), "{text}");
}

#[test]
fn the_first_difference_of_two_runs_is_named() {
    let output = child_process("tape::pairs_in_a_separate_process").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Each rank has a tape of its own, and continues it after a resume.
#[cfg(target_os = "linux")]
#[test]
fn each_rank_has_a_tape_that_continues_after_a_resume() {
    let folder = once(|| scratch("tape-ranks"));
    let run = |name: &str, program: Program, stop: Option<u64>, is_resumed: bool| {
        let folder = folder.join(name);
        let checkpoint = Checkpoint::in_run_folder().every(Every::Steps(2));
        let builder = program.builder(&folder, Tape::full()).hook(checkpoint);
        let builder = cancelled_at(stop, builder);
        let builder = if is_resumed { builder.resume(Resume::Auto) } else { builder };
        let result = builder.build()?.fit(&mut program.data(), Some(&mut model::rows(8)));
        assert!(stop.is_none() || result.is_err());
        if stop.is_some() { Ok(()) } else { result.map(drop) }
    };
    let on_one = |changed: Program| {
        move || if World::from_env().unwrap().rank() == 1 { changed } else { Program::default() }
    };
    let draws = on_one(Program { gradient_bit: Some(5), ..Program::default() });
    Ranks::new(2).run(|| run("one", Program::default(), None, false)).unwrap();
    Ranks::new(2).run(|| run("cut", Program::default(), Some(7), false)).unwrap();
    Ranks::new(2).run(|| run("cut", Program::default(), None, true)).unwrap();
    // The ranks notice that their models differ, and the tape of rank 1 says why.
    Ranks::new(2).run(|| run("other", draws(), None, false)).unwrap_err();
    once(|| {
        let between = |one: &str, other: &str, file: &str| {
            compare(folder.join(one).join(file), folder.join(other).join(file))
        };
        for file in ["run.tape", "run.rank-1.tape"] {
            let found = between("one", "cut", file);
            assert!(found.is_empty() && found.end.is_none(), "{file}: {found}");
        }
        let found = between("one", "other", "run.rank-1.tape").to_string();
        assert!(found.starts_with("train batch 5 (epoch 0): hook `noise` at after_backward"), "{found}");
        let found = between("one", "other", "run.tape");
        assert!(found.is_empty() && found.end.is_some_and(|end| end.run == 1));
        std::fs::remove_dir_all(&folder).unwrap();
    });
}
