//! Batch weights: gradients accumulated over batches of any size match one large batch.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::hooks::{Amp, HyperparameterSchedule};
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::{Counters, TrainerBuilder};

use self::replaced::EachFourth;
use crate::support::{device, distance, flat_parameters, gradient_norm, scratch};

mod replaced;
mod zero;

/// Rows of tokens: inputs `[n, 6, 4]`, targets `[n, 6]`, and a mask `[n, 6]` with a 1 for each
/// token that is not padding.
type Tokens = (Tensor, Tensor, Tensor);

const EPOCHS: u64 = 3;

/// Two layers in f64, with a shared optimizer or one each. The loss is a mean over rows, or over
/// the unmasked tokens.
struct Halves {
    vars: nn::VarStore,
    left: nn::Linear,
    right: nn::Linear,
    by_token: bool,
    /// Whether each layer has its own optimizer and loss.
    in_turn: bool,
    /// Whether a step runs two backward passes.
    twice: bool,
    /// Whether the loss is a sum, although `weight` is for a mean.
    sums: bool,
    /// The value that `weight` returns instead of the correct one.
    claims: Option<f64>,
}

fn halves(by_token: bool, in_turn: bool) -> Halves {
    tch::set_num_threads(1);
    let mut vars = nn::VarStore::new(device());
    vars.set_kind(Kind::Double);
    let left = nn::linear(vars.root() / "left", 4, 8, Default::default());
    let right = nn::linear(vars.root() / "right", 8, 1, Default::default());
    vars.double();
    tch::no_grad(|| {
        for (name, mut tensor) in vars.variables() {
            let values = Tensor::arange(tensor.numel() as i64, (Kind::Double, device()));
            tensor.copy_(&((values + name.len() as f64).sin() * 0.3).view_as(&tensor));
        }
    });
    Halves { vars, left, right, by_token, in_turn, twice: false, sums: false, claims: None }
}

impl Halves {
    /// Returns the mean of the errors raised to `power`, over the rows or the unmasked tokens. With
    /// `sums`, returns their sum over all tokens.
    fn mean(&self, pred: &Tensor, (_, targets, mask): &Tokens, power: f64) -> Tensor {
        let each = (pred - targets).abs().pow_tensor_scalar(power);
        if self.sums {
            return each.sum(Kind::Double);
        }
        if self.by_token {
            (each * mask).sum(Kind::Double) / mask.sum(Kind::Double)
        } else {
            each.mean(Kind::Double)
        }
    }
}

impl Task for Halves {
    type Batch = Tokens;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, ..): &Tokens, _: Mode) -> Result<Tensor> {
        Ok(inputs.apply(&self.left).tanh().apply(&self.right).squeeze_dim(-1))
    }
    fn loss(&mut self, pred: &Tensor, batch: &Tokens) -> Result<Tensor> {
        Ok(self.mean(pred, batch, 2.0))
    }
    fn weight(&self, batch: &Tokens) -> f64 {
        if let Some(claimed) = self.claims {
            claimed
        } else if self.by_token {
            batch.2.sum(Kind::Double).double_value(&[])
        } else {
            batch.0.size()[0] as f64
        }
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let predicted = step.pred()?;
        if !step.task().in_turn {
            let scored = step.loss(predicted)?;
            let mut differentiated = step.backward(scored)?;
            if step.task().twice {
                let predicted = step.pred()?;
                let scored =
                    step.loss_with(predicted, |task, pred, batch| Ok(task.mean(pred, batch, 3.0)))?;
                differentiated = step.backward(scored)?;
            }
            return step.opt_step(differentiated);
        }
        let scored = step.loss(predicted)?;
        let left = step.backward_of("left", scored)?;
        let predicted = step.pred()?;
        let scored = step.loss_with(predicted, |task, pred, batch| Ok(task.mean(pred, batch, 3.0)))?;
        let right = step.backward_of("right", scored)?;
        let _ = step.opt_step(left)?;
        step.opt_step(right)
    }
}

/// Returns rows with different numbers of unmasked tokens.
fn tokens(rows: i64) -> Tokens {
    let range = |count: i64| Tensor::arange(count, (Kind::Double, device()));
    let inputs = (range(rows * 24) * 0.37).sin().view([rows, 6, 4]);
    let targets = (range(rows * 6) * 0.11).cos().view([rows, 6]) * 2.0;
    let lengths = (range(rows).square() * 0.07).remainder(6.0).floor() + 1.0;
    let mask = range(6).view([1, 6]).lt_tensor(&lengths.view([-1, 1])).to_kind(Kind::Double);
    (inputs, targets, mask)
}

fn loader((inputs, targets, mask): Tokens, batch_size: usize) -> InMemory<Tokens> {
    InMemory::new((inputs, targets, mask)).unwrap().batch_size(batch_size)
}

/// Returns 101 rows as one batch.
fn large() -> InMemory<Tokens> {
    loader(tokens(101), 101)
}

/// Returns the 101 rows in batches of 32, 32, 32 and 5.
fn uneven() -> InMemory<Tokens> {
    loader(tokens(101), 32)
}

/// Returns only these ranges of the 101 rows (start and end), as one batch.
fn chosen(rows: &[(i64, i64)]) -> InMemory<Tokens> {
    let (inputs, targets, mask) = tokens(101);
    let select = |tensor: &Tensor| {
        Tensor::cat(
            &rows.iter().map(|(first, end)| tensor.narrow(0, *first, end - first)).collect::<Vec<_>>(),
            0,
        )
    };
    let count = rows.iter().map(|(first, end)| end - first).sum::<i64>() as usize;
    loader((select(&inputs), select(&targets), select(&mask)), count)
}

#[derive(Clone, Copy, Debug)]
enum By {
    Sgd,
    AdamW,
}

const BOTH: [By; 2] = [By::Sgd, By::AdamW];

fn optimizer(by: By) -> Box<dyn Optimizer> {
    match by {
        By::Sgd => Box::new(Sgd::new(0.05)),
        By::AdamW => Box::new(AdamW::new(0.02)),
    }
}

fn builder(task: Halves, by: By) -> TrainerBuilder<Halves> {
    let in_turn = task.in_turn;
    let builder = Trainer::builder(task).discover(Discover::None).epochs(EPOCHS);
    if in_turn {
        builder.optimizer_of("left", optimizer(by)).optimizer_of("right", optimizer(by))
    } else {
        builder.optimizer(optimizer(by))
    }
}

/// Returns the parameters after training, and the loss of each epoch.
fn trained(builder: TrainerBuilder<Halves>, mut data: InMemory<Tokens>) -> (Tensor, Vec<f64>) {
    let mut trainer = builder.build().unwrap();
    let summary = trainer.fit(&mut data, None).unwrap();
    assert!(flat_parameters(&trainer).isfinite().all().int64_value(&[]) == 1);
    let losses = summary.history.points("train/loss").map(|(_, loss)| loss).collect();
    (flat_parameters(&trainer), losses)
}

fn assert_equal(what: &str, by: impl Debug, one: &(Tensor, Vec<f64>), other: &(Tensor, Vec<f64>)) {
    let apart = distance(&one.0, &other.0);
    assert!(apart < 1e-10, "{what} {by:?}: parameters {apart:.1e} apart");
    for (one, other) in one.1.iter().zip(&other.1) {
        assert!((one - other).abs() < 1e-10, "{what} {by:?}: the losses are {one} and {other}");
    }
}

/// Adds a hook that scales every training loss and does not unscale the gradients.
fn scaled(builder: TrainerBuilder<Halves>) -> TrainerBuilder<Halves> {
    builder.on::<AfterLoss>("scales", |cx| {
        if cx.phase() == Phase::Train {
            cx.scale_loss(3.7);
        }
    })
}

/// Records the norms of the gradients.
#[derive(Default)]
struct Norms {
    before_opt_step: Vec<f64>,
    after_backward: Vec<f64>,
}

#[hook(ord = -100)]
impl Norms {
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) {
        self.before_opt_step.push(gradient_norm(cx));
    }
    fn after_backward(&mut self, cx: &mut Cx<AfterBackward>) {
        self.after_backward.push(gradient_norm(cx));
    }
}

#[test]
fn accumulating_uneven_batches_matches_one_large_batch() {
    type Cell = (&'static str, bool, fn(TrainerBuilder<Halves>) -> TrainerBuilder<Halves>);
    // Autocast computes f64 as f64, and its scale is a power of two.
    let cells: [Cell; 8] = [
        ("plain", false, |builder| builder),
        ("clip", false, |builder| builder.clip_grad_norm(0.05)),
        ("clip by value", false, |builder| builder.clip_grad_value(0.01)),
        ("scale_loss", false, scaled),
        ("tokens", true, |builder| builder),
        ("tokens, clip, scale_loss", true, |builder| scaled(builder.clip_grad_norm(0.05))),
        ("scaler", false, |builder| builder.hook(Amp::fp16())),
        ("tokens, clip, scaler", true, |builder| builder.clip_grad_norm(0.05).hook(Amp::fp16())),
    ];
    for by in BOTH {
        for (what, by_token, with) in cells {
            for in_turn in [false, true] {
                let one = trained(with(builder(halves(by_token, in_turn), by)), large());
                let four = trained(with(builder(halves(by_token, in_turn), by).accumulate(4)), uneven());
                assert_equal(&format!("{what}, parts: {in_turn}"), by, &one, &four);
                // Without accumulation the result differs, so the comparison is meaningful.
                let other = trained(with(builder(halves(by_token, in_turn), by)), uneven());
                assert!(distance(&one.0, &other.0) > 1e-4);
            }
        }
    }
}

#[test]
fn hooks_see_running_sums_after_backward_and_the_mean_before_opt_step() {
    let norms = |accumulate: u64, mut data: InMemory<Tokens>| {
        let builder = builder(halves(true, false), By::Sgd).epochs(1).accumulate(accumulate);
        let mut trainer = builder.hook(Norms::default()).build().unwrap();
        trainer.fit(&mut data, None).unwrap();
        let norms = trainer.hook::<Norms>().unwrap();
        (norms.before_opt_step.clone(), norms.after_backward.clone())
    };
    let ((one, _), (four, after)) = (norms(1, large()), norms(4, uneven()));
    assert_eq!((one.len(), four.len(), after.len()), (1, 1, 4));
    assert!((one[0] - four[0]).abs() < 1e-12);
    // The gradients after the last backward pass are a sum, relative to the first batch.
    let sum = tokens(101).2.sum(Kind::Double).double_value(&[]);
    let first = tokens(32).2.sum(Kind::Double).double_value(&[]);
    assert!((after[3] / four[0] - sum / first).abs() < 1e-12, "{after:?} {four:?}");
}

#[test]
fn backward_starts_from_the_scaled_loss() {
    let seen: Arc<Mutex<Vec<[f64; 3]>>> = Arc::default();
    let note = Arc::clone(&seen);
    let builder = scaled(builder(halves(true, false), By::Sgd).epochs(1).accumulate(4));
    let mut trainer = builder
        .on::<BeforeBackward>("note", move |cx| {
            let [loss, scaled] = [cx.loss().double_value(&[]), cx.scaled_loss().double_value(&[])];
            note.lock().unwrap().push([loss, scaled, cx.weight()]);
        })
        .build()
        .unwrap();
    trainer.fit(&mut uneven(), None).unwrap();
    let seen = seen.lock().unwrap();
    for [loss, scaled, weight] in seen.iter() {
        assert!((scaled - loss * 3.7 * weight / seen[0][2]).abs() < 1e-12);
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_window_of_one_batch_is_not_scaled() {
    for by_token in [false, true] {
        for by in BOTH {
            let of_claim = |claims: Option<f64>| {
                let task = Halves { claims, ..halves(by_token, false) };
                trained(builder(task, by), uneven()).0
            };
            let plain = of_claim(None);
            for weight in [1e-300, 1.0 / 3.0, 7.1e300] {
                assert_eq!(distance(&plain, &of_claim(Some(weight))), 0.0, "bit for bit");
            }
        }
    }
}

#[test]
fn a_run_cancelled_within_a_window_resumes_bit_for_bit() {
    for by in BOTH {
        for in_turn in [false, true] {
            for (accumulate, at) in [(4, 1), (4, 2), (4, 3), (1, 2)] {
                let builder = || {
                    let builder =
                        scaled(builder(halves(true, in_turn), by).accumulate(accumulate)).clip_grad_norm(0.5);
                    // Without accumulation: gradients that a hook keeps, which are already a mean.
                    if accumulate == 1 { builder.hook(EachFourth) } else { builder }
                };
                let expected = trained(builder(), uneven());
                let folder = scratch(&format!("weights-{by:?}-{in_turn}-{accumulate}-{at}"));
                let token = trainer::CancelToken::new();
                let cancel = token.clone();
                let path = folder.join("cancelled");
                let mut trainer = builder()
                    .cancel_token(token)
                    .on::<AfterStep>("cancel", move |cx| {
                        if cx.counters().epoch == 1 && cx.counters().batch_idx == at {
                            cancel.cancel();
                        }
                    })
                    .on::<AfterCancel>("save", move |cx| cx.save_checkpoint(&path))
                    .build()
                    .unwrap();
                assert!(trainer.fit(&mut uneven(), None).unwrap_err().is_cancelled());
                drop(trainer);
                let resumed =
                    trained(builder().resume(folder.join("cancelled")).allow_inexact_resume(true), uneven());
                assert_eq!(distance(&expected.0, &resumed.0), 0.0, "{by:?} {in_turn} {accumulate} {at}");
                assert_eq!(expected.1, resumed.1);
                std::fs::remove_dir_all(&folder).unwrap();
            }
        }
    }
}

#[test]
fn a_summed_loss_with_the_default_weight_counts_large_batches_twice() {
    let of_sum = |claims: Option<f64>, accumulate: u64, data: InMemory<Tokens>| {
        let task = Halves { sums: true, claims, ..halves(false, false) };
        trained(builder(task, By::AdamW).accumulate(accumulate), data).0
    };
    // With a weight of 1 for each batch, a window is the mean of the sums, which is the sum up to a
    // constant factor.
    let mean_of_sums = of_sum(Some(1.0), 4, uneven());
    assert!(distance(&of_sum(Some(1.0), 1, large()), &mean_of_sums) < 1e-6, "AdamW ignores the factor");
    // With the default weight, large batches count twice: by the terms of their sum and by their
    // weight.
    assert!(distance(&mean_of_sums, &of_sum(None, 4, uneven())) > 1e-6);
}

#[test]
fn metrics_are_means_over_elements() {
    let rows = |cx: &Cx<AfterStep>| cx.batch::<Tokens>().unwrap().0.size()[0] as f64;
    let build = || {
        builder(halves(true, false), By::Sgd).on::<AfterStep>("log", move |cx| {
            let rows = rows(cx);
            cx.log("rows_by_tokens", rows);
            cx.log_weighted("rows", rows, rows);
        })
    };
    let mut trainer = build().build().unwrap();
    let uneven = trainer.test(&mut uneven()).unwrap().metrics;
    let large = trainer.test(&mut large()).unwrap().metrics;
    assert!((uneven["test/loss"] - large["test/loss"]).abs() < 1e-12);
    assert!((uneven["test/rows"] - (3.0 * 32.0 * 32.0 + 5.0 * 5.0) / 101.0).abs() < 1e-12);
    assert!((uneven["test/rows_by_tokens"] - uneven["test/rows"]).abs() > 1e-3);

    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let builder = build().on::<AfterLoss>("log", move |cx| cx.log_weighted("a", 1.0, weight));
        let error = builder.build().unwrap().test(&mut self::uneven()).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot log `a`: its weight is {weight}: expected")), "{error}");
    }
}

/// Limits a loader to its first two batches.
trait Limited {
    fn limited(self) -> impl Loader<Tokens>;
}

impl Limited for InMemory<Tokens> {
    fn limited(mut self) -> impl Loader<Tokens> {
        from_fn(move |_| self.batches(0, 0).unwrap().take(2).collect::<Vec<_>>().into_iter())
    }
}

/// Drops half of the rows of a batch.
fn drop_half_of_the_rows(batch: &mut Tokens) {
    let half = batch.0.size()[0] / 2;
    for tensor in [&mut batch.0, &mut batch.1, &mut batch.2] {
        *tensor = tensor.narrow(0, 0, half);
    }
}

#[test]
fn weight_is_recomputed_after_a_hook_changes_the_batch() {
    let builder = || builder(halves(true, false), By::AdamW).accumulate(4);
    let rows = chosen(&[(0, 16), (32, 48), (64, 80), (96, 98)]);
    let one = trained(builder(), rows);
    let early = builder().on::<BeforeTransfer>("halve", |cx| cx.batch_mut().map(drop_half_of_the_rows));
    assert_equal("before transfer", "", &one, &trained(early, uneven()));
    let late = builder().on::<AfterTransfer>("halve", |cx| cx.batch_mut().map(drop_half_of_the_rows));
    assert_equal("after transfer", "", &one, &trained(late, uneven()));
}

#[test]
fn an_invalid_weight_is_an_error_that_names_it_and_the_batch() {
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let task = Halves { claims: Some(weight), ..halves(false, false) };
        let error = builder(task, By::Sgd).build().unwrap().fit(&mut uneven(), None).unwrap_err().to_string();
        let expected = format!(
            "failed at step, epoch 0, batch 0 on a batch of (Double [32, 6, 4], Double [32, 6], Double [32, 6]): \
             `Task::weight` returned {weight}: expected the number of elements over which the loss is averaged, finite \
             and at least 0"
        );
        assert_eq!(error, expected);
    }
    // Each weight is valid, but their sum is not.
    let task = Halves { claims: Some(1e308), ..halves(false, false) };
    let error = builder(task, By::Sgd).accumulate(4).build().unwrap().fit(&mut uneven(), None).unwrap_err();
    assert!(
        error.to_string().contains("the weights of an accumulation window add up to infinity"),
        "{error}"
    );
}

/// The task of `reference/accumulation.py`.
struct Reference {
    vars: nn::VarStore,
    net: nn::Sequential,
    by_token: bool,
}

impl Task for Reference {
    type Batch = Tokens;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, ..): &Tokens, _: Mode) -> Result<Tensor> {
        Ok(inputs.apply(&self.net).squeeze_dim(-1))
    }
    fn loss(&mut self, pred: &Tensor, (_, targets, mask): &Tokens) -> Result<Tensor> {
        let errors = (pred - targets).square();
        Ok(match self.by_token {
            true => (errors * mask).sum(Kind::Double) / mask.sum(Kind::Double),
            false => errors.mean(Kind::Double),
        })
    }
    fn weight(&self, (inputs, _, mask): &Tokens) -> f64 {
        if self.by_token { mask.sum(Kind::Double).double_value(&[]) } else { inputs.size()[0] as f64 }
    }
}

#[test]
fn accumulation_over_uneven_batches_matches_pytorch() {
    tch::set_num_threads(1);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/accumulation.safetensors");
    let reference: HashMap<_, _> = Tensor::read_safetensors(path).unwrap().into_iter().collect();
    for (name, by_token) in [("samples", false), ("tokens", true)] {
        let mut vars = nn::VarStore::new(device());
        let root = vars.root();
        let net = nn::seq()
            .add(nn::linear(&root / "fc1", 4, 8, Default::default()))
            .add_fn(Tensor::tanh)
            .add(nn::linear(&root / "fc2", 8, 1, Default::default()));
        vars.double();
        tch::no_grad(|| {
            for (path, mut tensor) in vars.variables() {
                tensor.copy_(&reference[&format!("init.{path}")]);
            }
        });
        let task = Reference { vars, net, by_token };
        let mut trainer = Trainer::builder(task)
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .epochs(5)
            .accumulate(4)
            .build()
            .unwrap();
        let data = ["inputs", "targets", "mask"].map(|key| reference[&format!("data.{key}")].shallow_clone());
        let [inputs, targets, mask] = data;
        trainer.fit(&mut loader((inputs, targets, mask), 32), None).unwrap();
        for run in ["large", "accumulated"] {
            let apart = trainer
                .vars()
                .parameters()
                .map(|var| distance(&var.tensor, &reference[&format!("final.{name}.{run}.{}", var.name)]));
            let apart = apart.fold(0.0, f64::max);
            assert!(apart < 1e-12, "{name}, {run}: {apart:.1e} apart");
        }
    }
}
