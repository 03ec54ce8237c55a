//! A program that tests run on several ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGKILL, SIGSTOP};
use signal_hook::low_level::raise;
use trainer::checkpoint::Resume;
use trainer::data::{NamedLoaders, from_fn, from_fn_per_rank};
use trainer::distributed::{Launch, Share, SyncBatchNorm, sync_batch_norm};
use trainer::hooks::{
    Amp, Checkpoint, DataParallel, EarlyStopping, Ema, GradientNoise, LocalSgd, ReduceOnPlateau, Swa,
};
use trainer::metrics::{MeanSquaredError, Metric};
use trainer::modules::Named;
use trainer::prelude::*;
use trainer::testing::Ranks;
use trainer::{Span, TrainerBuilder};

use crate::sharded::{optimizer, with_optimizer_hooks};

/// Inputs `[n, 6, 4]`, targets `[n, 6]`, and a mask `[n, 6]` with a 1 for each token that counts.
pub(crate) type Tokens = (Tensor, Tensor, Tensor);

/// Two layers, with one shared optimizer or one each.
pub(crate) struct Net {
    vars: nn::VarStore,
    left: Named<nn::Linear>,
    right: nn::Linear,
    /// An additional layer and a threshold. The layer adds to the predictions of the tokens whose
    /// first input exceeds the threshold, and is not called if a batch has no such token.
    spare: Option<(nn::Linear, f64)>,
    norms: Vec<SyncBatchNorm>,
    by_token: bool,
    in_turn: bool,
    is_gan: bool,
}

impl Net {
    /// Creates a network whose weights differ between ranks until those of rank 0 are broadcast.
    pub(crate) fn new(scene: &Scene) -> Self {
        let mut vars = nn::VarStore::new(Device::Cpu);
        let kind = match () {
            () if scene.is("bf16") || scene.is("f32") => Kind::Float,
            () if scene.is("bf16_weights") => Kind::BFloat16,
            () => Kind::Double,
        };
        vars.set_kind(kind);
        let left = nn::linear(vars.root() / "left", 4, 8, Default::default()).named(vars.root() / "left");
        if scene.is_here("other_model") {
            let _ = vars.root().zeros("extra", &[3]);
        }
        let right = nn::linear(vars.root() / "right", 8, 1, Default::default());
        // Some ranks have no such token in a batch, or no rank ever has one.
        let threshold = [("unused", 0.99), ("never_used", 2.0)].into_iter().find(|(word, _)| scene.is(word));
        let spare = || nn::linear(vars.root() / "spare", 8, 1, Default::default());
        let spare = threshold.map(|(_, threshold)| (spare(), threshold));
        let norm = |name| sync_batch_norm(vars.root() / name, 8, Default::default());
        let norms = if scene.is("norms") { vec![norm("norm1"), norm("norm2")] } else { Vec::new() };
        if !norms.is_empty() {
            vars.double(); // tch creates buffers in single precision
        }
        tch::no_grad(|| {
            let is_running = |name: &str| name.contains("running");
            for (name, mut tensor) in vars.variables().into_iter().filter(|(name, _)| !is_running(name)) {
                let values = Tensor::arange(tensor.numel() as i64, (Kind::Double, Device::Cpu));
                let shift = name.len() as f64 + 0.1 * f64::from(scene.rank);
                tensor.copy_(&((values + shift).sin() * 0.3).view_as(&tensor));
            }
        });
        let by_token = scene.is("tokens");
        let in_turn = scene.is("turns");
        let is_gan = scene.is("gan");
        Net { vars, left, right, spare, norms, by_token, in_turn, is_gan }
    }

    fn hidden(&self, inputs: &Tensor, mode: Mode) -> Tensor {
        let mut hidden = inputs.to_kind(self.left.ws.kind()).apply(&self.left);
        for norm in &self.norms {
            let images = hidden.transpose(1, 2).unsqueeze(-1);
            hidden = images.apply_t(norm, mode == Mode::Train).squeeze_dim(-1).transpose(1, 2).tanh();
        }
        hidden.tanh()
    }

    /// Trains the layer `right` to separate hidden states from real ones, and `left` to mislead it.
    fn adversarial_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let predicted = step.pred_with(|net, (inputs, ..)| {
            Ok(net.hidden(inputs, Mode::Train).detach().apply(&net.right).squeeze_dim(-1))
        })?;
        let scored = step.loss_with(predicted, |net, fakes, (_, targets, _)| {
            let scales = Tensor::arange_start(1, 9, (Kind::Double, Device::Cpu)) / 8.0;
            let reals = (targets.unsqueeze(-1) * scales).apply(&net.right).squeeze_dim(-1);
            Ok(cross_entropy(&reals, 0.9) + cross_entropy(fakes, 0.0))
        })?;
        let right = step.backward_of("right", scored)?;
        let _ = step.opt_step(right)?;
        let predicted = step.pred()?;
        let scored = step.loss_with(predicted, |_, fakes, _| Ok(cross_entropy(fakes, 1.0)))?;
        let left = step.backward_of("left", scored)?;
        step.opt_step(left)
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

/// The mean binary cross-entropy of logits that all have the same target.
fn cross_entropy(logits: &Tensor, target: f64) -> Tensor {
    let targets = logits.full_like(target);
    logits.binary_cross_entropy_with_logits::<Tensor>(&targets, None, None, Reduction::Mean)
}

impl Task for Net {
    type Batch = Tokens;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, ..): &Tokens, mode: Mode) -> Result<Tensor> {
        let hidden = self.hidden(inputs, mode).dropout(0.0, mode == Mode::Train);
        let pred = hidden.apply(&self.right).squeeze_dim(-1);
        let Some((spare, threshold)) = &self.spare else {
            return Ok(pred);
        };
        let is_above = inputs.select(2, 0).gt(*threshold);
        if is_above.any().int64_value(&[]) == 0 {
            return Ok(pred);
        }
        Ok(pred + hidden.apply(spare).squeeze_dim(-1) * is_above)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Tokens) -> Result<Tensor> {
        Ok(self.mean(pred, batch, 2.0))
    }
    fn weight(&self, batch: &Tokens) -> f64 {
        if self.by_token { batch.2.sum(Kind::Double).double_value(&[]) } else { batch.0.size()[0] as f64 }
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        if step.task().is_gan {
            return Self::adversarial_step(step);
        }
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

pub(crate) fn tokens(rows: i64) -> Tokens {
    let range = |count: i64| Tensor::arange(count, (Kind::Double, Device::Cpu));
    let inputs = (range(rows * 24) * 0.37).sin().view([rows, 6, 4]);
    let targets = (range(rows * 6) * 0.11).cos().view([rows, 6]) * 2.0;
    let lengths = (range(rows).square() * 0.07).remainder(6.0).floor() + 1.0;
    let mask = range(6).view([1, 6]).lt_tensor(&lengths.view([-1, 1])).to_kind(Kind::Double);
    (inputs, targets, mask)
}

/// The options of a run: words, some with a value after `=`.
pub(crate) struct Scene {
    rank: u32,
    words: BTreeMap<String, String>,
}

impl Scene {
    /// Parses the scene for this rank.
    pub(crate) fn new(words: &str) -> Self {
        let split = |word: &str| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            (name.to_owned(), value.to_owned())
        };
        let rank = std::env::var("RANK").ok().and_then(|rank| rank.parse().ok());
        Scene { rank: rank.unwrap_or(0), words: words.split(' ').map(split).collect() }
    }

    pub(crate) fn is(&self, word: &str) -> bool {
        self.words.contains_key(word)
    }

    pub(crate) fn value(&self, word: &str) -> Option<u64> {
        self.words.get(word).and_then(|value| value.parse().ok())
    }

    /// Returns whether the value of this word is this rank.
    pub(crate) fn is_here(&self, word: &str) -> bool {
        self.value(word) == Some(u64::from(self.rank))
    }
}

/// The results of one rank.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Outcome {
    pub(crate) stopped: Option<String>,
    /// The losses of the optimizer steps, over the rows of all ranks.
    pub(crate) losses: Vec<f64>,
    pub(crate) metrics: BTreeMap<String, f64>,
    /// The bits of all weights.
    pub(crate) weights: Vec<u64>,
    pub(crate) counters: [u64; 5],
    /// The number of elements of the optimizers' state on this rank.
    pub(crate) state: usize,
    /// The predictions, gathered from all ranks.
    pub(crate) preds: Vec<f64>,
}

/// Records the loss of each optimizer step.
#[derive(Default)]
pub(crate) struct Losses(Vec<f64>);

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
        saved.set("losses", &self.0)?;
        Ok(saved)
    }
    fn load(&mut self, saved: &trainer::checkpoint::Saved) -> Result<()> {
        self.0 = saved.get("losses")?;
        Ok(())
    }
}

/// Adds hooks that cause the mishap of the scene on one rank: a failure, a request or a skipped
/// step.
fn mishap(scene: &Scene, builder: TrainerBuilder<Net>) -> TrainerBuilder<Net> {
    let at = scene.value("at").unwrap_or(10);
    let words = ["error", "panic", "kill", "hang", "stop", "end", "skip", "token"];
    let what = match words.into_iter().find(|word| scene.is(word)) {
        Some(what) => what,
        // A resumed run has the same hooks as the interrupted one.
        None if std::env::var_os("TRAINER_TESTS_FOLDER").is_some() => "nothing",
        None => return builder,
    };
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
                "skip" => cx.skip_batch(),
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

/// The environment variable with the rank that is killed, the number of the save in which that
/// happens, and the number of microseconds after its start.
pub(crate) const KILL: &str = "TRAINER_TESTS_KILL";

/// Returns a hook that kills this rank at the moment that the environment describes.
fn kill_in_save(rank: u32) -> impl FnMut(&mut Cx<BeforeSaveCheckpoint>) + Send {
    let kill = std::env::var(KILL).unwrap_or_default();
    let mut numbers = kill.split(' ').filter_map(|number| number.parse::<u64>().ok());
    let is_here = numbers.next() == Some(u64::from(rank));
    let [save, delay] = [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)];
    let mut saves = 0;
    move |_| {
        saves += 1;
        if is_here && saves == save {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(delay));
                raise(SIGKILL).unwrap();
            });
        }
    }
}

/// Replaces the backward pass.
struct Replaced;

#[hook]
impl Replaced {
    fn replace(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.replace(cx, |cx| cx.backward(&cx.scaled_loss()))
    }
}

/// Adds the gradients of a penalty, with the weight of this rank's rows, after the backward pass.
struct Penalty;

#[hook]
impl Penalty {
    fn add(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        let factor = (cx.scaled_loss() / cx.loss()).detach();
        let done = next.run(cx)?;
        let vars = cx.vars();
        let squares: Vec<Tensor> =
            vars.parameters().map(|var| var.tensor.square().sum(Kind::Double)).collect();
        cx.backward(&(Tensor::stack(&squares, 0).sum(Kind::Double) * factor * 0.01))?;
        Ok(done)
    }
}

/// Adds the hooks that the scene names.
fn with_hooks(scene: &Scene, builder: TrainerBuilder<Net>) -> TrainerBuilder<Net> {
    let valid_loss = "valid/loss";
    match () {
        () if scene.is("find_unused") => builder.hook(DataParallel::new().find_unused(true)),
        () if scene.is("compressed") => builder.hook(DataParallel::new().compress(Kind::BFloat16)),
        () if scene.is("compressed_to_int") => builder.hook(DataParallel::new().compress(Kind::Int)),
        () if scene.is("replaced") => builder.hook(Replaced),
        () if scene.is("penalty") => builder.hook(Penalty),
        () if scene.is("local") => builder.hook(LocalSgd::every(3).outer(0.7, 0.9)),
        () if scene.is("noise") => builder.hook(GradientNoise::new(0.1)),
        () if scene.is("ema") => builder.hook(Ema::new(0.9)),
        () if scene.is("swa") => builder.hook(Swa::from_epoch(2)),
        () if scene.is("bf16") => builder.hook(Amp::bf16()),
        () if scene.is("early") => {
            builder.hook(EarlyStopping::new(valid_loss, Goal::Minimize).patience(1).min_delta(10.0))
        }
        () if scene.is("plateau") => {
            builder.hook(ReduceOnPlateau::new(valid_loss, Goal::Minimize).patience(0).threshold_abs(10.0))
        }
        () => builder,
    }
}

/// Returns a loader that yields only the rows of this rank.
fn own_rows() -> Result<impl Loader<Tokens>> {
    let launch = Launch::from_env()?;
    let share =
        launch.map_or(Share { rank: 0, of: 1 }, |launch| Share { rank: launch.rank(), of: launch.size() });
    Ok(from_fn(move |_| {
        (0..6).map(move |nth| {
            let all = tokens(nth + 7);
            let own = share.rows(nth as usize + 7);
            let own = |tensor: &Tensor| tensor.narrow(0, own.start as i64, own.len() as i64);
            (own(&all.0), own(&all.1), own(&all.2))
        })
    })
    .deterministic(true))
}

/// Returns batches that a rank has fewer of than another one. Rank `r` of three has `lengths[r]`
/// batches: its share of each. A single process has the rows of all ranks that have the batch.
fn uneven(lengths: [u64; 3]) -> impl Loader<Tokens> + Send + 'static {
    from_fn_per_rank(move |epoch, share| {
        let batches = if share.of == 1 { 6 } else { lengths[share.rank as usize] };
        (0..batches).map(move |nth| {
            let rows = (nth + epoch) as usize % 6 + 7;
            let (inputs, targets, mask) = tokens(rows as i64);
            let ranks =
                (0..3).filter(|rank| lengths[*rank as usize] > nth && (share.of == 1 || share.rank == *rank));
            let own = |tensor: &Tensor| {
                let own = ranks.clone().map(|rank| Share { rank, of: 3 }.rows(rows));
                let own = own.map(|rows| tensor.narrow(0, rows.start as i64, rows.len() as i64));
                Tensor::cat(&own.collect::<Vec<_>>(), 0)
            };
            (own(&inputs), own(&targets), own(&mask))
        })
    })
    .deterministic(true)
}

/// Trains, validates and predicts: the program that all ranks run.
pub(crate) fn train(scene: &Scene) -> Result<Outcome> {
    tch::set_num_threads(1);
    let mut rows = 97;
    if scene.is_here("other_data") {
        rows = 96;
    }
    let mut builder = Trainer::builder(Net::new(scene)).seed(3).epochs(scene.value("epochs").unwrap_or(5));
    builder = if scene.is("turns") || scene.is("gan") {
        builder.optimizer_of("left", optimizer(scene)).optimizer_of("right", optimizer(scene))
    } else {
        builder.optimizer(optimizer(scene))
    };
    if !(scene.is("turns") || scene.is("gan") || scene.is("unclipped")) {
        builder = builder.clip_grad_norm(0.5);
    }
    builder = with_optimizer_hooks(scene, builder);
    if let Some(batches) = scene.value("accumulate") {
        builder = builder.accumulate(batches);
    }
    if scene.is_here("other_settings") {
        builder = builder.max_steps(7);
    }
    if scene.is("other_decay") {
        builder = builder.hook(Ema::new(if scene.is_here("other_decay") { 0.8 } else { 0.9 }));
    }
    if scene.is_here("main_hook") {
        builder = builder.on::<Main<AfterStep>>("alone", |_| ());
    }
    if scene.is("diverge") {
        let is_here = scene.is_here("diverge");
        builder = builder.on::<AfterStep>("diverge", move |cx| {
            if is_here && cx.phase() == Phase::Train {
                let _no_grad = tch::no_grad_guard();
                let vars = cx.vars();
                let mut weight = vars.get("left.weight")?.shallow_clone();
                weight += weight.randn_like() * 1e-6;
            }
            Ok(())
        });
    }
    if scene.is_here("other_hooks") {
        builder = builder.on::<AfterStep>("lonely", |_| ());
    }
    builder = with_hooks(scene, mishap(scene, builder))
        .record_every(Every::Steps(1))
        .hook(Losses::default())
        .hook(
            MeanSquaredError::new()
                .inputs(|(_, targets, _): &Tokens, pred: &Tensor| Some((pred.copy(), targets.copy())))
                .only([Phase::Train, Phase::Valid]),
        )
        .on::<AfterLoss>("error", |cx| {
            let error = cx.pred::<Tensor>()?.abs().max();
            cx.log_as("largest", error, trainer::Reduce::Max);
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
        builder = builder.on::<AfterLoss>("lonely", move |cx| {
            if is_here { cx.world().any("lonely", false).map(drop) } else { Ok(()) }
        });
    }
    if scene.is("collective") {
        builder = builder.on::<AfterStep>("collective", |cx| {
            // Every rank is here for every batch of every pass.
            let counters = cx.counters();
            let number = Tensor::from(counters.batch_idx as i64);
            let all = cx.world().all_gather("batch", &number)?;
            assert_eq!(all.max().int64_value(&[]), all.min().int64_value(&[]));
            Ok(())
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
        let keep = scene.value("keep").unwrap_or(1) as usize;
        let every = Every::Steps(scene.value("every").unwrap_or(4));
        let checkpoint = Checkpoint::new(folder).every(every).keep_last(keep);
        builder = builder.hook(checkpoint.in_background(scene.is("background"))).resume(Resume::Auto);
        builder = builder.on::<BeforeSaveCheckpoint>("kill", kill_in_save(scene.rank));
        builder = builder.allow_inexact_resume(scene.is("inexact"));
    }
    if scene.is("return") {
        builder = builder.on_signal(trainer::OnSignal::Return);
    }
    let mut trainer = builder.build()?;
    let batch_size = scene.value("batch").unwrap_or(16) as usize;
    let stream = |_| (0..6).map(|nth| tokens(nth % 4 + 2));
    let stream = from_fn(stream).deterministic(true);
    let mut train: Box<dyn Loader<Tokens>> = match () {
        () if scene.is("whole") => Box::new(stream),
        () if scene.is("stream") => Box::new(stream.sliced().prefetch(2)),
        () if scene.is("per_rank") => Box::new(own_rows()?.per_rank()),
        () if scene.is("empty") => Box::new(uneven([6, 1, 0])),
        () if scene.is("uneven") && scene.is("ahead") => Box::new(uneven([2, 6, 4]).prefetch(2)),
        () if scene.is("uneven") => Box::new(uneven([2, 6, 4])),
        () => {
            let data = tokens(rows);
            if scene.is_here("other_content") {
                let _ = data.0.get(rows - 1).f_fill_(9)?;
            }
            Box::new(InMemory::new(data)?.batch_size(batch_size).shuffle(7))
        }
    };
    let valid = InMemory::new(tokens(13))?.batch_size(5);
    let mut valid: Box<dyn Loader<Tokens>> = if scene.is("named") {
        let stream = from_fn(|_| (0..2).map(|nth| tokens(nth + 4))).deterministic(true);
        Box::new(NamedLoaders::new().add("clean", valid).add("stream", stream).sliced())
    } else if scene.is("uneven") {
        Box::new(uneven([3, 1, 6]))
    } else {
        Box::new(valid)
    };
    if scene.is("step_outside") {
        trainer.optimizer_mut().expect("it has one").step()?;
    }
    let summary = trainer.fit(&mut train, Some(&mut valid))?;
    // Copied before the next entry point, which broadcasts the weights of rank 0.
    let mut weights = Vec::new();
    for var in trainer.vars().iter() {
        let values = Vec::<f64>::try_from(&var.tensor.view([-1]).to_kind(Kind::Double))?;
        weights.extend(values.into_iter().map(f64::to_bits));
    }
    let mut unseen: Box<dyn Loader<Tokens>> = match scene.is("uneven") {
        true => Box::new(uneven([6, 5, 1])),
        false => Box::new(InMemory::new(tokens(18))?.batch_size(16)),
    };
    let preds = trainer.predict(&mut unseen)?;
    let preds = trainer::distributed::World::from_env()?.gather_predictions("preds", &preds)?;
    let counters = summary.counters;
    let optimizers = ["", "left", "right"].into_iter().filter_map(|part| trainer.optimizer_of(part).ok());
    let state = optimizers.flat_map(|optimizer| optimizer.state()).map(|(_, tensor)| tensor.numel()).sum();
    Ok(Outcome {
        stopped: summary.stopped,
        losses: trainer.hook::<Losses>().map(|losses| losses.0.clone()).unwrap_or_default(),
        metrics: summary.metrics.iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        weights,
        state,
        counters: [
            counters.epoch,
            counters.batch_idx,
            counters.batches_seen,
            counters.optimizer_steps,
            counters.samples_seen,
        ],
        preds: Vec::try_from(preds.view([-1]).to_kind(Kind::Double))?,
    })
}

/// Runs a scene on several ranks, and returns the result of each.
pub(crate) fn results(count: u32, scene: &str, vars: &[(&str, &str)]) -> Vec<Result<Outcome>> {
    let ranks = Ranks::new(count).timeout(Duration::from_secs(240));
    let ranks = vars.iter().fold(ranks, |ranks, (name, value)| ranks.env(name, value));
    ranks.results(|| train(&Scene::new(scene))).unwrap()
}

/// Runs a scene that fails on all ranks, and returns the errors.
pub(crate) fn errors(count: u32, scene: &str, vars: &[(&str, &str)]) -> Vec<String> {
    results(count, scene, vars).into_iter().map(|result| result.unwrap_err().to_string()).collect()
}

/// Runs a scene that all ranks complete, and checks that all have the same weights and metrics.
pub(crate) fn completed(count: u32, scene: &str, vars: &[(&str, &str)]) -> Outcome {
    let outcomes: Vec<Outcome> = results(count, scene, vars).into_iter().collect::<Result<_>>().unwrap();
    equal_on_all(&outcomes.iter().collect::<Vec<_>>(), &format!("{count} ranks, {scene}"));
    outcomes.into_iter().next().unwrap()
}

/// Returns whether two lists of numbers are equal within a tolerance.
pub(crate) fn close(one: &[f64], other: &[f64], tolerance: f64) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| (one - other).abs() <= tolerance)
}

/// Runs scenes one after the other in the same processes, checks that all ranks complete each with
/// equal results, and returns the outcomes of rank 0.
pub(crate) fn all_completed(count: u32, scenes: &[String]) -> Vec<Outcome> {
    let all = || scenes.iter().map(|scene| train(&Scene::new(scene))).collect::<Result<Vec<_>>>();
    let ranks = Ranks::new(count).timeout(Duration::from_secs(240)).run(all).unwrap();
    for (nth, scene) in scenes.iter().enumerate() {
        let outcomes: Vec<&Outcome> = ranks.iter().map(|scenes| &scenes[nth]).collect();
        equal_on_all(&outcomes, &format!("{count} ranks, {scene}"));
    }
    ranks.into_iter().next().unwrap()
}

/// Checks that the results on several numbers of ranks match a single process. The scenes run one
/// after the other in the same processes.
pub(crate) fn same_as_one(scenes: &[&str], counts: &[u32]) {
    let run = |scene: &&str| {
        train(&Scene::new(scene)).map_err(|error| Error::msg(format!("scene `{scene}`: {error}")))
    };
    let all = || scenes.iter().map(run).collect::<Result<Vec<_>>>();
    // In a separate process, because other tests in this process also draw random numbers.
    let alone = Ranks::new(1).timeout(Duration::from_secs(240)).run(all).unwrap().remove(0);
    for &count in counts {
        let ranks = Ranks::new(count).timeout(Duration::from_secs(240)).run(all).unwrap();
        for (nth, (scene, alone)) in scenes.iter().zip(&alone).enumerate() {
            let what = format!("{count} ranks, {scene}");
            let ranks: Vec<&Outcome> = ranks.iter().map(|scenes| &scenes[nth]).collect();
            equal_on_all(&ranks, &what);
            let together = ranks[0];
            let tolerance = if scene.contains("bf16") { 0.02 } else { 1e-9 };
            assert!(!alone.losses.is_empty());
            let one = &together.losses;
            let other = &alone.losses;
            assert!(close(one, other, tolerance), "{what}: {one:?} {other:?}");
            assert!(close(&together.preds, &alone.preds, tolerance), "{what}");
            assert_eq!(together.counters, alone.counters, "{what}");
            assert_eq!(together.stopped, alone.stopped, "{what}");
            let names: Vec<_> = together.metrics.keys().collect();
            assert_eq!(names, alone.metrics.keys().collect::<Vec<_>>(), "{what}");
            for (name, value) in &alone.metrics {
                let other = together.metrics[name];
                assert!((value - other).abs() < tolerance, "{name}: {value} {other}, {what}");
            }
        }
    }
}

/// Checks that all ranks have the same weights, metrics, losses and counters.
fn equal_on_all(ranks: &[&Outcome], what: &str) {
    for (rank, outcome) in ranks.iter().enumerate() {
        assert!(outcome.weights == ranks[0].weights, "rank {rank}: {what}");
        assert_eq!(outcome.metrics, ranks[0].metrics, "rank {rank}: {what}");
        assert_eq!(outcome.losses, ranks[0].losses, "rank {rank}: {what}");
        assert_eq!(outcome.counters, ranks[0].counters, "rank {rank}: {what}");
        assert_eq!(outcome.stopped, ranks[0].stopped, "rank {rank}: {what}");
    }
}
