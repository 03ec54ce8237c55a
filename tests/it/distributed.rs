//! Training in several processes: the same results as in one, one decision, checkpoints, failures.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGKILL, SIGSTOP};
use signal_hook::low_level::raise;
use trainer::checkpoint::Resume;
use trainer::data::from_fn;
use trainer::hooks::Checkpoint;
use trainer::metrics::{MeanSquaredError, Metric};
use trainer::prelude::*;
use trainer::{Span, TrainerBuilder};

use crate::support::{child_process, scratch};

/// Inputs `[n, 6, 4]`, targets `[n, 6]`, and a mask `[n, 6]` with a 1 for each token that counts.
type Tokens = (Tensor, Tensor, Tensor);

/// Two layers, with one shared optimizer or one each.
struct Net {
    vars: nn::VarStore,
    left: nn::Linear,
    right: nn::Linear,
    by_token: bool,
    in_turn: bool,
}

impl Net {
    /// Creates a network whose weights differ between ranks: those of rank 0 count.
    fn new(scene: &Scene) -> Self {
        let mut vars = nn::VarStore::new(Device::Cpu);
        vars.set_kind(Kind::Double);
        let left = nn::linear(vars.root() / "left", 4, 8, Default::default());
        let right = nn::linear(vars.root() / "right", 8, 1, Default::default());
        tch::no_grad(|| {
            for (name, mut tensor) in vars.variables() {
                let values = Tensor::arange(tensor.numel() as i64, (Kind::Double, Device::Cpu));
                let shift = name.len() as f64 + 0.1 * f64::from(scene.rank);
                tensor.copy_(&((values + shift).sin() * 0.3).view_as(&tensor));
            }
        });
        Net { vars, left, right, by_token: scene.is("tokens"), in_turn: scene.is("turns") }
    }

    fn mean(&self, pred: &Tensor, (_, targets, mask): &Tokens, power: f64) -> Tensor {
        let each = (pred - targets).abs().pow_tensor_scalar(power);
        if self.by_token {
            (each * mask).sum(Kind::Double) / mask.sum(Kind::Double)
        } else {
            each.mean(Kind::Double)
        }
    }
}

impl Task for Net {
    type Batch = Tokens;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, ..): &Tokens, mode: Mode) -> Result<Tensor> {
        let hidden = inputs.apply(&self.left).tanh().dropout(0.0, mode == Mode::Train);
        Ok(hidden.apply(&self.right).squeeze_dim(-1))
    }
    fn loss(&mut self, pred: &Tensor, batch: &Tokens) -> Result<Tensor> {
        Ok(self.mean(pred, batch, 2.0))
    }
    fn weight(&self, batch: &Tokens) -> f64 {
        if self.by_token { batch.2.sum(Kind::Double).double_value(&[]) } else { batch.0.size()[0] as f64 }
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let predicted = step.pred()?;
        let scored = step.loss(predicted)?;
        if !step.task().in_turn {
            let differentiated = step.backward(scored)?;
            return step.opt_step(differentiated);
        }
        let left = step.backward_of("left", scored)?;
        let _ = step.opt_step(left)?;
        let predicted = step.pred()?;
        let scored = step.loss_with(predicted, |task, pred, batch| Ok(task.mean(pred, batch, 3.0)))?;
        let right = step.backward_of("right", scored)?;
        step.opt_step(right)
    }
}

fn tokens(rows: i64) -> Tokens {
    let range = |count: i64| Tensor::arange(count, (Kind::Double, Device::Cpu));
    let inputs = (range(rows * 24) * 0.37).sin().view([rows, 6, 4]);
    let targets = (range(rows * 6) * 0.11).cos().view([rows, 6]) * 2.0;
    let lengths = (range(rows).square() * 0.07).remainder(6.0).floor() + 1.0;
    let mask = range(6).view([1, 6]).lt_tensor(&lengths.view([-1, 1])).to_kind(Kind::Double);
    (inputs, targets, mask)
}

/// The scene of a child process: words, some with a value after `=`.
struct Scene {
    rank: u32,
    words: BTreeMap<String, String>,
}

impl Scene {
    fn from_env() -> Self {
        let words = std::env::var(SCENE).unwrap();
        let split = |word: &str| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            (name.to_owned(), value.to_owned())
        };
        // Some tests set `RANK` to invalid values.
        let rank = std::env::var(OWN_RANK).or_else(|_| std::env::var("RANK"));
        let rank = rank.map_or(0, |rank| rank.parse().unwrap());
        Scene { rank, words: words.split(' ').map(split).collect() }
    }

    fn is(&self, word: &str) -> bool {
        self.words.contains_key(word)
    }

    fn value(&self, word: &str) -> Option<u64> {
        self.words.get(word).and_then(|value| value.parse().ok())
    }

    /// Whether this word has this rank as its value.
    fn is_here(&self, word: &str) -> bool {
        self.value(word) == Some(u64::from(self.rank))
    }
}

const SCENE: &str = "TRAINER_TESTS_SCENE";
const OWN_RANK: &str = "TRAINER_TESTS_RANK";
const OUT: &str = "TRAINER_TESTS_OUT";

/// What a child process reports.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Outcome {
    error: Option<String>,
    stopped: Option<String>,
    /// The losses of the optimizer steps, on rank 0.
    losses: Vec<f64>,
    metrics: BTreeMap<String, f64>,
    /// The bits of all weights.
    weights: Vec<u64>,
    counters: [u64; 5],
    /// The predictions, gathered from all ranks.
    preds: Vec<f64>,
    seconds: f64,
}

/// The losses of the steps.
#[derive(Default)]
struct Losses(Vec<f64>);

#[hook(state)]
impl Losses {
    #[hook(only = train)]
    fn after_record(&mut self, cx: &mut Cx<AfterRecord>) {
        let record = cx.record();
        if record.span() == Span::Steps {
            self.0.extend(record.scalars().find(|(name, _)| *name == "train/loss").map(|(_, value)| value));
        }
    }
}

impl trainer::checkpoint::State for Losses {
    fn save(&self) -> Result<trainer::checkpoint::Saved> {
        let mut saved = trainer::checkpoint::Saved::new();
        saved.value("losses", &self.0)?;
        Ok(saved)
    }
    fn load(&mut self, saved: &trainer::checkpoint::Saved) -> Result<()> {
        self.0 = saved.get("losses")?;
        Ok(())
    }
}

/// Fails on one rank, in the way that the scene specifies.
fn mishap(scene: &Scene, builder: TrainerBuilder<Net>) -> TrainerBuilder<Net> {
    let at = scene.value("at").unwrap_or(10);
    let words = ["error", "panic", "kill", "hang", "stop", "end", "skip", "token"];
    let Some(what) = words.into_iter().find(|word| scene.is(word)) else { return builder };
    let is_here = scene.is_here(what);
    let token = trainer::CancelToken::new();
    let mut has_acted = !is_here;
    builder
        .cancel_token(token.clone())
        .on::<BeforeStep>("mishap", move |cx| {
            if cx.phase() != Phase::Train || cx.counters().batches_seen != at || has_acted {
                return Ok(());
            }
            has_acted = true;
            match what {
                "error" => return Err(Error::msg("the disk is on fire")),
                "panic" => panic!("the disk is on fire"),
                "kill" => raise(SIGKILL).unwrap(),
                "hang" => raise(SIGSTOP).unwrap(),
                "skip" => cx.skip_step(),
                "token" => token.cancel(),
                _ => {}
            }
            Ok(())
        })
        .on::<AfterStep>("request", move |cx| {
            if is_here && cx.phase() == Phase::Train && cx.counters().batches_seen == at {
                match what {
                    "stop" => cx.stop("one rank has seen enough"),
                    "end" => cx.end_epoch(),
                    _ => {}
                }
            }
        })
}

/// The program of each rank.
#[test]
#[ignore = "run by the other tests in a child process"]
fn rank() {
    let since = Instant::now();
    let scene = Scene::from_env();
    let mut outcome = std::panic::catch_unwind(|| train(&scene))
        .unwrap_or_else(|_| Outcome { error: Some("panicked".into()), ..Outcome::default() });
    outcome.seconds = since.elapsed().as_secs_f64();
    let path = PathBuf::from(std::env::var(OUT).unwrap()).join(format!("{}.json", scene.rank));
    fs::write(path, serde_json::to_string(&outcome).unwrap()).unwrap();
}

fn train(scene: &Scene) -> Outcome {
    tch::set_num_threads(1);
    let mut rows = 97;
    if scene.is_here("other_data") {
        rows = 96;
    }
    let mut builder = Trainer::builder(Net::new(scene)).seed(3).epochs(scene.value("epochs").unwrap_or(5));
    builder = if scene.is("turns") {
        builder.optimizer_of("left", AdamW::new(1e-2)).optimizer_of("right", AdamW::new(1e-2))
    } else {
        builder.optimizer(AdamW::new(1e-2)).clip_grad_norm(0.5)
    };
    if let Some(batches) = scene.value("accumulate") {
        builder = builder.accumulate(batches);
    }
    if scene.is_here("other_settings") {
        builder = builder.max_steps(7);
    }
    builder = mishap(scene, builder)
        .record_every(Every::Steps(1))
        .hook(Losses::default())
        .hook(
            MeanSquaredError::new()
                .inputs(|(_, targets, _): &Tokens, pred: &Tensor| Some((pred.copy(), targets.copy())))
                .phases([Phase::Train, Phase::Valid]),
        )
        .on::<AfterLoss>("error", |cx| {
            let error = cx.pred::<Tensor>()?.abs().max();
            cx.log_as(trainer::Reduce::Max, "largest", error);
            Ok(())
        });
    if scene.is("lonely_name") {
        let rank = u64::from(scene.rank);
        let lonely = scene.value("lonely_name");
        builder = builder.on::<AfterLoss>("lonely", move |cx| {
            if lonely == Some(rank) {
                cx.log("lonely", 1.0);
            }
        });
    }
    if scene.is("lonely_collective") {
        let is_here = scene.is_here("lonely_collective");
        builder = builder.on::<AfterLoss>("lonely", move |cx| match cx.world() {
            Some(world) if is_here => world.any(false).map(drop),
            _ => Ok(()),
        });
    }
    if scene.is("twice_the_rows") {
        builder = builder.on::<AfterTransfer>("twice", |cx| {
            if cx.phase() == Phase::Predict {
                return Ok(()); // the order of the predictions would differ
            }
            let batch = cx.batch_mut::<Tokens>()?;
            let twice = |tensor: &Tensor| Tensor::cat(&[tensor, tensor], 0);
            *batch = (twice(&batch.0), twice(&batch.1), twice(&batch.2));
            Ok(())
        });
    }
    if let Ok(folder) = std::env::var("TRAINER_TESTS_FOLDER") {
        let checkpoint = Checkpoint::new(folder).every(Every::Steps(4));
        builder = builder.hook(checkpoint.in_background(scene.is("background"))).resume(Resume::Auto);
        builder = builder.allow_inexact_resume(scene.is("inexact"));
    }
    if scene.is("return") {
        builder = builder.on_signal(trainer::OnSignal::Return);
    }
    let result = builder.build().and_then(|mut trainer| {
        let mut train: Box<dyn Loader<Tokens>> = if scene.is("stream") {
            let stream = |_| (0..6).map(|nth| tokens(nth % 4 + 2));
            let stream = from_fn(stream).deterministic(true);
            if scene.is("whole") { Box::new(stream) } else { Box::new(stream.sliced().prefetch(2)) }
        } else {
            Box::new(InMemory::new(tokens(rows))?.batch_size(16).shuffle(7))
        };
        let mut valid = InMemory::new(tokens(13))?.batch_size(5);
        let summary = trainer.fit(&mut train, Some(&mut valid))?;
        let preds = trainer.predict(&mut InMemory::new(tokens(18))?.batch_size(16))?;
        let preds = match trainer::distributed::World::from_env()? {
            Some(world) => world.gather_predictions(&preds)?,
            None => Tensor::cat(&preds, 0),
        };
        let mut weights = Vec::new();
        for var in trainer.vars().iter() {
            let values = Vec::<f64>::try_from(&var.tensor.view([-1]))?;
            weights.extend(values.into_iter().map(f64::to_bits));
        }
        let counters = summary.counters;
        Ok(Outcome {
            error: None,
            stopped: summary.stopped,
            losses: trainer.hook::<Losses>().map(|losses| losses.0.clone()).unwrap_or_default(),
            metrics: summary.metrics.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            weights,
            counters: [
                counters.epoch,
                counters.batch_idx,
                counters.batches_seen,
                counters.optimizer_steps,
                counters.samples_seen,
            ],
            preds: Vec::try_from(preds.view([-1]))?,
            seconds: 0.0,
        })
    });
    result.unwrap_or_else(|error| Outcome { error: Some(error.to_string()), ..Outcome::default() })
}

/// The processes of one run.
struct Ranks {
    folder: PathBuf,
    children: Vec<Child>,
}

impl Ranks {
    fn spawn(count: usize, name: &str, scene: &str, vars: &[(&str, &str)]) -> Self {
        let folder = scratch(&format!("distributed-{name}-{count}"));
        let children = (0..count).map(|rank| {
            let mut command = child_process("distributed::rank");
            command.env(SCENE, scene).env(OUT, &folder).env(OWN_RANK, rank.to_string());
            if count > 1 {
                let meet = format!("file://{}", folder.join("meet").display());
                command.env("WORLD_SIZE", count.to_string()).env("RANK", rank.to_string());
                command.env("MASTER_ADDR", meet).env("TRAINER_RANK_TIMEOUT", "60");
            }
            let log = fs::File::create(folder.join(format!("{rank}.log"))).unwrap();
            command.stdout(Stdio::null()).stderr(log);
            command.envs(vars.iter().copied()).spawn().unwrap()
        });
        let children = children.collect();
        Ranks { folder, children }
    }

    /// Waits for all processes, and returns what they report; `None` for those that ended without.
    fn join(mut self) -> Vec<Option<Outcome>> {
        let since = Instant::now();
        let mut left: Vec<usize> = (0..self.children.len()).collect();
        while !left.is_empty() && since.elapsed() < Duration::from_secs(240) {
            left.retain(|&rank| self.children[rank].try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(20));
            // A stopped process does not exit; the others have by now.
            if left.len() == 1 && self.is_stopped(left[0]) {
                break;
            }
        }
        for &rank in &left {
            self.children[rank].kill().unwrap();
            self.children[rank].wait().unwrap();
        }
        let outcomes = outcomes(&self.folder, self.children.len());
        fs::remove_dir_all(&self.folder).unwrap();
        outcomes
    }

    fn is_stopped(&self, rank: usize) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.children[rank].id())).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }
}

/// Reads what the ranks have reported.
fn outcomes(folder: &Path, count: usize) -> Vec<Option<Outcome>> {
    let outcome = |rank| {
        let text = fs::read_to_string(folder.join(format!("{rank}.json"))).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    };
    (0..count).map(outcome).collect()
}

/// Runs a scene that all ranks complete, and checks that all have the same weights and metrics.
fn completed(count: usize, name: &str, scene: &str, vars: &[(&str, &str)]) -> Outcome {
    let outcomes: Vec<Outcome> = Ranks::spawn(count, name, scene, vars)
        .join()
        .into_iter()
        .map(|it| it.expect("it has ended"))
        .collect();
    for (rank, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.error, None, "rank {rank} of {count}: {scene}");
        assert!(outcome.weights == outcomes[0].weights, "rank {rank} of {count}: {scene}");
        assert_eq!(outcome.metrics, outcomes[0].metrics, "rank {rank} of {count}: {scene}");
        assert_eq!(outcome.losses, outcomes[0].losses, "rank {rank} of {count}: {scene}");
        assert_eq!(outcome.counters, outcomes[0].counters, "rank {rank} of {count}: {scene}");
    }
    outcomes.into_iter().next().unwrap()
}

fn close(one: &[f64], other: &[f64], tolerance: f64) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| (one - other).abs() <= tolerance)
}

/// Checks that any number of ranks gives the results of one process.
fn same_as_one(name: &str, scene: &str, counts: &[usize]) {
    let alone = completed(1, name, scene, &[]);
    assert!(!alone.losses.is_empty());
    for &count in counts {
        let together = completed(count, name, scene, &[]);
        let (one, other) = (&together.losses, &alone.losses);
        assert!(close(one, other, 1e-9), "{count} ranks, {scene}: {one:?} {other:?}");
        assert!(close(&together.preds, &alone.preds, 1e-9), "{count} ranks, {scene}");
        assert_eq!(together.counters, alone.counters, "{count} ranks, {scene}");
        let names: Vec<_> = together.metrics.keys().collect();
        assert_eq!(names, alone.metrics.keys().collect::<Vec<_>>(), "{count} ranks, {scene}");
        for (name, value) in &alone.metrics {
            let other = together.metrics[name];
            assert!((value - other).abs() < 1e-9, "{name}: {value} {other}, {count} ranks, {scene}");
        }
    }
}

#[test]
fn any_number_of_ranks_gives_the_losses_of_one_process() {
    // The last of seven batches has one row.
    same_as_one("plain", "plain", &[2, 3, 4, 7]);
}

#[test]
fn accumulated_and_token_weighted_gradients_do_not_depend_on_the_ranks() {
    same_as_one("accumulate", "accumulate=3", &[2]);
    same_as_one("tokens", "tokens accumulate=2", &[3]);
}

#[test]
fn the_parts_of_a_model_are_reduced_each_by_itself() {
    same_as_one("turns", "turns accumulate=2", &[2]);
}

#[test]
fn batches_that_hooks_change_and_streams_are_divided_between_the_ranks() {
    same_as_one("twice", "twice_the_rows", &[2]);
    same_as_one("stream", "stream", &[3]);
}

#[test]
fn what_one_rank_requests_happens_on_all_at_the_same_step() {
    for (scene, batches, stopped) in [
        ("stop=1 at=10", 10, Some("one rank has seen enough")),
        ("end=1 at=3", 31, None),
        ("skip=1 at=3", 34, None),
    ] {
        let outcome = completed(2, "request", scene, &[]);
        assert_eq!(outcome.counters[2], batches, "{scene}");
        assert_eq!(outcome.stopped.as_deref(), stopped, "{scene}");
    }
}

/// Runs a scene that fails, and returns the errors.
fn failed(count: usize, name: &str, scene: &str, vars: &[(&str, &str)]) -> Vec<Option<Outcome>> {
    Ranks::spawn(count, name, scene, vars).join()
}

fn error(outcome: &Option<Outcome>) -> &str {
    outcome.as_ref().and_then(|it| it.error.as_deref()).unwrap_or("no error")
}

#[test]
fn an_error_or_a_panic_on_one_rank_ends_the_others_with_its_reason() {
    for scene in ["error=1", "panic=0"] {
        let outcomes = failed(3, "error", scene, &[]);
        for (rank, outcome) in outcomes.iter().enumerate() {
            let text = error(outcome);
            let cause = usize::from(scene == "error=1");
            if rank != cause {
                assert!(
                    text.contains(&format!("another rank ended with an error, rank {cause}: ")),
                    "{text}"
                );
                assert!(text.contains("the disk is on fire"), "{text}");
                assert!(text.contains("before_step, epoch 1, batch 3"), "{text}");
            }
        }
    }
}

#[test]
fn a_rank_that_is_killed_or_hangs_ends_the_others() {
    for (scene, timeout) in [("kill=1", "60"), ("hang=0", "5")] {
        let outcomes = failed(2, "lost", scene, &[("TRAINER_RANK_TIMEOUT", timeout)]);
        let lost = usize::from(scene == "kill=1");
        assert!(outcomes[lost].is_none());
        let text = error(&outcomes[1 - lost]);
        assert!(text.contains(&format!("rank {} lost the other ranks in `", 1 - lost)), "{text}");
        assert!(text.contains(&format!("rank {lost} gave no sign")), "{text}");
    }
}

#[test]
fn ranks_that_do_not_run_the_same_are_refused_with_the_difference() {
    for (scene, expected) in [
        ("other_data=1", "the training data of rank 0 and rank 1 differ: `97 rows"),
        ("other_settings=1", "the settings of rank 0 and rank 1 differ: `max_steps = "),
        (
            "turns lonely_collective=1",
            "not at the same collective: rank 0 is at `the gradients of left`, rank 1 is at `any`",
        ),
        ("lonely_name=1", "rank 1 has logged `train/lonely` in this pass, and rank 0 has not"),
        (
            "stream whole",
            "2 processes train together, and this loader yields the same batches to all of them",
        ),
    ] {
        for outcome in failed(2, "different", scene, &[]) {
            let text = error(&outcome);
            assert!(text.contains(expected), "{scene}: {text}");
        }
    }
}

fn folder_var(folder: &Path) -> [(&'static str, &str); 1] {
    [("TRAINER_TESTS_FOLDER", folder.to_str().unwrap())]
}

#[test]
fn ranks_that_are_killed_or_cancelled_resume_to_the_same_bits() {
    let uninterrupted = completed(2, "uninterrupted", "accumulate=3", &[]);
    for scene in [
        "kill=1 at=17 accumulate=3",
        "token=1 at=17 accumulate=3 return",
        "kill=0 at=17 accumulate=3 background",
    ] {
        let folder = scratch("distributed-resume");
        let vars = folder_var(&folder);
        let outcomes = failed(2, "interrupted", scene, &vars);
        assert!(
            outcomes.iter().all(|outcome| error(outcome) != "no error" || outcome.is_none()),
            "{outcomes:?}"
        );
        let resumed = completed(2, "resumed", "accumulate=3", &vars);
        assert!(resumed.weights == uninterrupted.weights, "{scene}");
        assert_eq!(resumed.losses, uninterrupted.losses, "{scene}");
        assert_eq!(resumed.metrics, uninterrupted.metrics, "{scene}");
        fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn another_number_of_ranks_resumes_inexactly_on_the_same_data() {
    let alone = completed(1, "alone", "accumulate=3", &[]);
    let folder = scratch("distributed-elastic");
    let vars = folder_var(&folder);
    // In the middle of an accumulation window.
    failed(2, "two", "token=1 at=10 accumulate=3 return", &vars);
    let refused = failed(3, "three", "accumulate=3", &vars);
    assert!(
        error(&refused[0]).contains("it was written by 2 processes that trained together"),
        "{refused:?}"
    );
    failed(3, "three", "token=2 at=17 accumulate=3 return inexact", &vars);
    let resumed = completed(1, "one", "accumulate=3 inexact", &vars);
    assert!(close(&resumed.losses, &alone.losses, 1e-9), "{:?} {:?}", resumed.losses, alone.losses);
    assert_eq!(resumed.counters, alone.counters);
    let names: Vec<_> = resumed.metrics.iter().zip(&alone.metrics).collect();
    for ((name, one), (_, other)) in names {
        assert!((one - other).abs() < 1e-9, "{name}: {one} {other}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn wrong_variables_are_named_when_the_trainer_is_built() {
    for (name, value, expected) in [
        ("RANK", "x", "the environment variable `RANK` is `x`: expected a number"),
        ("RANK", "2", "`RANK` is 2, but `WORLD_SIZE` is 2: expected a rank from 0 to 1"),
        ("MASTER_ADDR", "127.0.0.1", "the environment variable `MASTER_PORT` is not set"),
    ] {
        for outcome in failed(2, "variables", "plain", &[(name, value)]) {
            let text = error(&outcome);
            assert!(text.contains(expected), "{text}");
        }
    }
}
