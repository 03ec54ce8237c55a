//! Finding a learning rate and a batch size, and restoring everything afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use trainer::data::from_fn;
use trainer::finders::{BatchSizeFinder, BatchSizeLimit, LearningRateFinder};
use trainer::hooks::{
    Amp, EarlyStopping, Ema, Freeze, HyperparameterSchedule, Lookahead, Progress, StochasticDepth,
};
use trainer::optim::{Group, Tch};
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::{CancelToken, TrainerBuilder};

use crate::model::{self, rows};
use crate::support::{child_process, device, exact_state, in_shell, own_warnings, scratch};

/// Returns `count` rows of data for the model, in batches of `samples`.
fn sized(count: i64, samples: usize) -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(count * 4, (Kind::Float, device())).view([count, 4]).sin();
    let labels = Tensor::arange(count, (Kind::Int64, device())).remainder(3);
    InMemory::new((inputs, labels)).unwrap().batch_size(samples)
}

#[test]
fn the_curve_matches_a_fit_with_exponentially_growing_rates() {
    let with = LearningRateFinder::new().from(1e-4).to(1.0).steps(30).smoothing(0.9);
    let optimizer = Sgd::new(0.5).group("fc1.*", Group::new().lr(0.25));
    let mut trainer =
        Trainer::builder(model::task()).optimizer(optimizer).discover(Discover::None).build().unwrap();
    let before = exact_state(&trainer);
    let curve = trainer.find_lr(&mut rows(16), &with).unwrap();
    assert_eq!(exact_state(&trainer), before);

    // By hand: 4 batches for each epoch, and half the rate for the first layer.
    let mut by_hand = Trainer::builder(model::task())
        .optimizer(Sgd::new(1.0).group("fc1.*", Group::new().lr(0.5)))
        .discover(Discover::None)
        .max_steps(30)
        .hook(HyperparameterSchedule::lr(|step: u64| 1e-4 * 1e4_f64.powf(step as f64 / 29.0)));
    let losses = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&losses);
    by_hand =
        by_hand.on::<AfterLoss>("note", move |cx| notes.lock().unwrap().push(cx.loss().double_value(&[])));
    by_hand.build().unwrap().fit(&mut rows(16), None).unwrap();
    let losses = losses.lock().unwrap();
    assert_eq!(curve.points().len(), 30);
    let mut average = 0.0;
    for (nth, (point, loss)) in curve.points().iter().zip(losses.iter()).enumerate() {
        assert!((point.loss - loss).abs() < 1e-6, "step {nth}: {} and {loss}", point.loss);
        assert!((point.lr / (1e-4 * 1e4_f64.powf(nth as f64 / 29.0)) - 1.0).abs() < 1e-12);
        average = 0.9 * average + 0.1 * point.loss;
        let smoothed = average / (1.0 - 0.9_f64.powi(i32::try_from(nth).unwrap() + 1));
        assert!((point.smoothed - smoothed).abs() < 1e-12);
    }
    let lr = curve.suggestion().unwrap();
    assert!((1e-4..1.0).contains(&lr), "{lr}");
    let svg = curve.to_svg();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!(svg.matches("<polyline").count(), 2);
}

#[test]
fn a_curve_ends_where_the_loss_diverges() {
    let mut trainer = model::builder().build().unwrap();
    let curve =
        trainer.find_lr(&mut rows(16), &LearningRateFinder::new().from(1e-3).to(1e6).smoothing(0.5)).unwrap();
    assert!(curve.has_diverged() && curve.points().len() < 100, "{}", curve.points().len());
    let error =
        trainer.find_lr(&mut rows(16), &LearningRateFinder::new().from(1e5).to(1e9)).unwrap_err().to_string();
    assert!(
        error.contains("the loss diverged after") && error.contains("too soon for a suggestion"),
        "{error}"
    );
}

#[test]
fn invalid_searches_and_unsupported_trainers_are_refused() {
    let mut trainer = model::builder().build().unwrap();
    let before = exact_state(&trainer);
    let cases = [
        (
            LearningRateFinder::new().from(1.0).to(0.1),
            "`.from(1.0)` and `.to(0.1)`: expected finite numbers above 0.0",
        ),
        (LearningRateFinder::new().from(0.0), "`.from(0.0)` and `.to(10.0)`"),
        (LearningRateFinder::new().to(f64::NAN), "`.to(NaN)`: expected finite numbers"),
        (LearningRateFinder::new().steps(3), "`.steps(3)`: expected at least 20"),
        (LearningRateFinder::new().smoothing(1.0), "`.smoothing(1.0)`"),
        (LearningRateFinder::new().stop_at(0.5), "`.stop_at(0.5)`"),
    ];
    for (with, expected) in cases {
        let error = trainer.find_lr(&mut rows(8), &with).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let batch =
        || (Tensor::ones([4, 4], (Kind::Float, device())), Tensor::zeros([4], (Kind::Int64, device())));
    let mut stream = from_fn(move |_| (0..10).map(move |_| batch()));
    let error = trainer.find_lr(&mut stream, &LearningRateFinder::new()).unwrap_err().to_string();
    assert!(error.contains("`find_lr` needs a deterministic loader"), "{error}");
    let error = trainer
        .find_batch_size(|_| Ok(from_fn(move |_| (0..10).map(move |_| batch()))), &BatchSizeFinder::new());
    assert!(error.unwrap_err().to_string().contains("`find_batch_size` needs a deterministic loader"));
    let mut empty = from_fn(|_| std::iter::empty::<(Tensor, Tensor)>()).deterministic(true);
    let error = trainer.find_lr(&mut empty, &LearningRateFinder::new()).unwrap_err().to_string();
    assert!(error.contains("the loader yielded no batches in epoch 0"), "{error}");
    let nan = || (Tensor::full([4, 4], f64::NAN, (Kind::Float, device())), batch().1);
    let mut nan = from_fn(move |_| (0..10).map(move |_| nan())).deterministic(true);
    let error = trainer.find_lr(&mut nan, &LearningRateFinder::new()).unwrap_err().to_string();
    assert!(error.contains("the loss of the first batch is NaN"), "{error}");

    let error = trainer.find_batch_size(|_| Ok(rows(64)), &BatchSizeFinder::new()).unwrap_err().to_string();
    assert!(error.contains("a batch has size 4 instead of the requested 2"), "{error}");
    let small = |samples| Ok(sized(5, samples));
    let error = trainer.find_batch_size(small, &BatchSizeFinder::new().from(6)).unwrap_err().to_string();
    assert!(error.contains("the loader yielded no batch of size 6"), "{error}");
    let error =
        trainer.find_batch_size(small, &BatchSizeFinder::new().from(3).max(2)).unwrap_err().to_string();
    assert!(
        error.contains("`.from(3)`, `.max(2)` and `.steps(3)`: expected numbers of at least 1"),
        "{error}"
    );
    let found = trainer.find_batch_size(small, &BatchSizeFinder::new()).unwrap();
    assert_eq!((found.size, found.limit), (4, BatchSizeLimit::Data));
    assert_eq!(exact_state(&trainer), before);

    let refused = |builder: TrainerBuilder<_>, expected: &str| {
        let error = builder
            .build()
            .unwrap()
            .find_lr(&mut rows(8), &LearningRateFinder::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    let bare = || Trainer::builder(model::task()).discover(Discover::None);
    let folder = scratch("find-resume");
    refused(bare(), "training needs an optimizer");
    let task = model::task();
    let foreign = Tch::new(nn::Sgd::default(), task.vars(), 0.1).unwrap();
    let builder = Trainer::builder(task).discover(Discover::None).optimizer(foreign);
    refused(builder, "cannot restore the optimizer afterwards");
    refused(
        bare().optimizer_of("fc1", Sgd::new(0.1)).optimizer_of("fc2", Sgd::new(0.1)),
        "this trainer has several",
    );
    refused(bare().optimizer(Sgd::new(0.1)).resume(Resume::From(folder.clone())), "before a resumed `fit`");
    refused(bare().optimizer(Sgd::new(0.1)).on::<Setup>("add", |_| ()), "does not run the hooks at `setup`");
    std::fs::remove_dir_all(folder).unwrap();
}

/// The ways in which one call of the loss ends a search.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Error,
    Panic,
    Cancel,
}

#[test]
fn an_error_a_panic_or_a_cancellation_restores_the_trainer() {
    for trouble in [Trouble::Error, Trouble::Panic, Trouble::Cancel] {
        let token = CancelToken::new();
        let calls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&calls);
        let cancel = token.clone();
        let vs = nn::VarStore::new(device());
        let net = nn::linear(vs.root() / "fc", 4, 3, Default::default());
        let task = Supervised::new(vs, net, move |logits: &Tensor, labels: &Tensor| {
            let mut calls = counted.lock().unwrap();
            *calls += 1;
            if *calls == 10 {
                drop(calls);
                match trouble {
                    Trouble::Error => return logits.shallow_clone(), // not a scalar
                    Trouble::Panic => panic!("in the loss"),
                    Trouble::Cancel => cancel.cancel(),
                }
            }
            logits.cross_entropy_for_logits(labels)
        });
        let optimizer = AdamW::new(0.01);
        let builder =
            Trainer::builder(task).optimizer(optimizer).discover(Discover::None).cancel_token(token);
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut rows(16), None).unwrap();
        let before = (exact_state(&trainer), trainer.counters(), trainer.history().clone());
        let result = catch_unwind(AssertUnwindSafe(|| {
            trainer.find_lr(&mut rows(16), &LearningRateFinder::new().stop_at(f64::INFINITY))
        }));
        match (trouble, result) {
            (Trouble::Panic, Err(_)) => {}
            (Trouble::Cancel, Ok(Err(error))) => assert!(error.is_cancelled(), "{error}"),
            (Trouble::Error, Ok(Err(error))) => {
                assert!(error.to_string().contains("must be a scalar"), "{error}");
            }
            (_, result) => panic!("{trouble:?}: {result:?}"),
        }
        assert_eq!(*calls.lock().unwrap(), 10);
        assert_eq!(
            (exact_state(&trainer), trainer.counters(), trainer.history().clone()),
            before,
            "{trouble:?}"
        );
        assert!(trainer.vars().parameters().all(|var| !var.tensor.grad().defined()));
    }
}

/// A network with buffers and dropout, so that training depends on them and on random numbers.
fn noisy() -> impl Task<Batch = (Tensor, Tensor)> {
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let net = nn::seq_t()
        .add(nn::linear(&root / "fc1", 4, 8, Default::default()))
        .add(nn::batch_norm1d(&root / "bn", 8, Default::default()))
        .add_fn_t(|xs, train| xs.relu().dropout(0.3, train))
        .add(nn::linear(&root / "fc2", 8, 3, Default::default()));
    Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels))
}

/// Depends on the random numbers of the process, so it runs in a separate one.
#[test]
#[ignore = "run by the other tests in a child process"]
fn child_between_two_fits() {
    tch::set_num_threads(1);
    let run = |seed: i64, finds: bool| {
        tch::manual_seed(seed);
        let records = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&records);
        let mut trainer = Trainer::builder(noisy())
            .optimizer(AdamW::new(0.01).group("*.bias", Group::new().weight_decay(0.0)))
            .discover(Discover::None)
            .epochs(2)
            .accumulate(2)
            .clip_grad_norm(1.0)
            .record_every(trainer::Every::Steps(1))
            .hook(Amp::bf16())
            .hook(Ema::new(0.9))
            .hook(HyperparameterSchedule::lr(Cosine::to(0.0)))
            .on::<AfterRecord>("note", move |cx| {
                let record = cx.record();
                let scalars: Vec<_> = record.scalars().collect();
                notes.lock().unwrap().push(format!(
                    "{:?} {:?} {:?}",
                    record.counters(),
                    record.phase(),
                    scalars
                ));
            })
            .build()
            .unwrap();
        let mut train = rows(28).shuffle(7);
        let mut valid = rows(8);
        trainer.fit(&mut train, Some(&mut valid)).unwrap();
        if finds {
            let curve =
                trainer.find_lr(&mut train, &LearningRateFinder::new().from(1e-4).to(1.0).steps(25)).unwrap();
            assert_eq!(curve.points().len(), 25);
            let found =
                trainer.find_batch_size(|samples| Ok(sized(64, samples)), &BatchSizeFinder::new().max(16));
            assert_eq!(found.unwrap().limit, BatchSizeLimit::Max);
        }
        let summary = trainer.fit(&mut train, Some(&mut valid)).unwrap();
        let averages: Vec<_> = trainer
            .hook::<Ema>()
            .unwrap()
            .average()
            .map(|(_, tensor)| format!("{tensor:?} {tensor}"))
            .collect();
        let random: Vec<f64> = Vec::try_from(Tensor::randn([8], (Kind::Double, device()))).unwrap();
        let records = std::mem::take(&mut *records.lock().unwrap());
        assert!(!records.is_empty());
        (exact_state(&trainer), summary.history, trainer.counters(), averages, random, records)
    };
    for seed in 0..20 {
        assert_eq!(run(seed, true), run(seed, false), "seed {seed}");
    }
}

#[test]
fn a_finder_between_two_fits_leaves_the_results_bit_identical() {
    let output = child_process("finders::child_between_two_fits").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A task whose forward pass takes 64 MiB of address space for each sample.
struct Hungry {
    vars: nn::VarStore,
    net: nn::Linear,
    panics: bool,
}

impl Task for Hungry {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        let size = [inputs.size()[0], 16 << 20];
        let options = (Kind::Float, device());
        // The tensor is never written to, so it takes no physical memory.
        let _taken = if self.panics { Tensor::empty(size, options) } else { Tensor::f_empty(size, options)? };
        Ok(inputs.apply(&self.net))
    }
    fn loss(&mut self, pred: &Tensor, (_, labels): &Self::Batch) -> Result<Tensor> {
        Ok(pred.cross_entropy_for_logits(labels))
    }
}

#[test]
#[ignore = "run by the other tests in a child process"]
fn child_with_little_memory() {
    tch::set_num_threads(1);
    for panics in [false, true] {
        let vars = nn::VarStore::new(device());
        let net = nn::linear(vars.root() / "fc", 4, 3, Default::default());
        let task = Hungry { vars, net, panics };
        let builder = Trainer::builder(task).optimizer(AdamW::new(0.1)).discover(Discover::None).epochs(1);
        let mut trainer = builder.build().unwrap();
        let before = exact_state(&trainer);
        let found =
            trainer.find_batch_size(|samples| Ok(sized(4096, samples)), &BatchSizeFinder::new()).unwrap();
        assert_eq!(found.limit, BatchSizeLimit::Memory);
        // The limit is 8 GiB, part of which the program itself uses.
        assert!((16..128).contains(&found.size), "{found:?}");
        assert_eq!(exact_state(&trainer), before);
        trainer.fit(&mut sized(64, 8), None).unwrap();
        let none =
            trainer.find_batch_size(|samples| Ok(sized(4096, samples)), &BatchSizeFinder::new().from(2000));
        let none = none.unwrap_err().to_string();
        assert!(none.contains("a batch of size 2000 does not fit into memory"), "{none}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_largest_batch_that_fits_into_memory_is_found() {
    let mut limited = in_shell("ulimit -v 8388608", &child_process("finders::child_with_little_memory"));
    let output = limited.env("OMP_NUM_THREADS", "1").env("RUST_BACKTRACE", "0").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_finder_freezes_what_the_next_fit_freezes() {
    let losses = |builder: TrainerBuilder<_>| {
        let mut trainer: Trainer<_> = builder.build().unwrap();
        let before = exact_state(&trainer);
        let trained = |trainer: &Trainer<_>| -> Vec<_> {
            trainer.vars().parameters().map(|var| var.tensor.requires_grad()).collect()
        };
        let all = trained(&trainer);
        let with = LearningRateFinder::new().from(1e-3).to(1.0).steps(20);
        let curve = trainer.find_lr(&mut rows(16), &with).unwrap();
        assert_eq!((exact_state(&trainer), trained(&trainer)), (before, all));
        curve.points().iter().map(|point| point.loss).collect::<Vec<_>>()
    };
    let frozen = losses(model::builder().hook(Freeze::new("fc1.*").thaw_at(1, "fc1.*")));
    let group = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1).group("fc1.*", Group::new().frozen(true)))
        .discover(Discover::None)
        .build()
        .unwrap()
        .find_lr(&mut rows(16), &LearningRateFinder::new().from(1e-3).to(1.0).steps(20))
        .unwrap();
    assert_eq!(frozen, group.points().iter().map(|point| point.loss).collect::<Vec<_>>());
    assert_ne!(frozen, losses(model::builder()));
}

/// Scales the gradients by a factor that depends on all earlier steps.
#[derive(Clone, Default, Deserialize, Serialize)]
struct Growing {
    steps: u32,
    #[serde(skip)]
    calls: Arc<AtomicU32>,
}

#[hook(state)]
impl Growing {
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        self.steps += 1;
        self.calls.fetch_add(1, Ordering::Relaxed);
        cx.unscale_grads(1.0 + f64::from(self.steps)).map(drop)
    }
}

/// Counts its calls. It has no state, and says that it runs in trials.
struct Counted(Arc<AtomicU32>);

#[hook(trial)]
impl Counted {
    fn after_backward(&mut self, _: &mut Cx<AfterBackward>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts its calls. It has a state, and says that it does not run in trials.
#[derive(Default, Deserialize, Serialize)]
struct LeftOut {
    #[serde(skip)]
    calls: Arc<AtomicU32>,
}

#[hook(state, trial = false)]
impl LeftOut {
    fn after_backward(&mut self, _: &mut Cx<AfterBackward>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns a copy of all parameters as one vector.
fn weights<T: Task>(trainer: &Trainer<T>) -> Tensor {
    let all: Vec<Tensor> = trainer.vars().parameters().map(|var| var.tensor.reshape([-1])).collect();
    Tensor::cat(&all, 0)
}

#[test]
fn a_finder_runs_hooks_with_a_state_or_with_trial_and_restores_them() {
    let growing = Growing::default();
    let grown = Arc::clone(&growing.calls);
    let counted = Arc::new(AtomicU32::new(0));
    let left_out = LeftOut::default();
    let ignored = Arc::clone(&left_out.calls);
    let closure = Arc::new(AtomicU32::new(0));
    let by_closure = Arc::clone(&closure);
    let mut trainer = model::builder()
        .hook(growing.clone())
        .hook(Counted(Arc::clone(&counted)))
        .hook(left_out)
        .on::<AfterBackward>(HookOptions::named("closure").trial(true), move |_| {
            by_closure.fetch_add(1, Ordering::Relaxed);
        })
        .hook(EarlyStopping::new("valid/loss", Goal::Minimize))
        .epochs(1)
        .build()
        .unwrap();
    let before = weights(&trainer);
    let steps = 20;
    trainer.find_lr(&mut rows(16), &LearningRateFinder::new().to(1e-3).steps(steps)).unwrap();
    let calls = [&grown, &counted, &closure, &ignored].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(calls, [steps, steps, steps, 0]);
    assert_eq!(trainer.hook::<Growing>().unwrap().steps, 0);
    assert_eq!(weights(&trainer), before);
    let mut loader = rows(16);
    let warnings = own_warnings(&trainer.fit(&mut loader, Some(&mut rows(16))).unwrap());
    let listed = "`find_lr` does not run `it::finders::LeftOut`: if one of these hooks changes training";
    assert!(warnings.len() == 1 && warnings[0].starts_with(listed), "{warnings:?}");
}

#[test]
fn a_finder_warns_of_hooks_that_may_change_training_but_do_not_run() {
    let mut trainer = model::builder()
        .hook(Lookahead::new(5, 0.5))
        .hook(HyperparameterSchedule::momentum(Cosine::to(0.0)))
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0)))
        .hook(Progress::new())
        .on::<BeforeOptStep>("mine", |_| {})
        .on::<Main<AfterStep>>("observer", |_| {})
        .epochs(1)
        .build()
        .unwrap();
    for _ in 0..2 {
        trainer.find_lr(&mut rows(16), &LearningRateFinder::new()).unwrap();
    }
    let warnings = own_warnings(&trainer.fit(&mut rows(16), None).unwrap());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let listed = "`find_lr` does not run `mine`, `trainer::hooks::HyperparameterSchedule`: if one of these hooks changes training";
    assert!(warnings[0].starts_with(listed), "{warnings:?}");
    let again = own_warnings(&trainer.fit(&mut rows(16), None).unwrap());
    assert!(again.iter().all(|text| text.contains("spans the run, which now has")), "{again:?}");
}

/// Sets the learning rate in every step.
#[derive(Default, Deserialize, Serialize)]
struct OwnRate {
    steps: u32,
}

#[hook(state)]
impl OwnRate {
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        self.steps += 1;
        cx.optimizer_mut()?.groups_mut()[0].lr = 0.5;
        Ok(())
    }
}

#[test]
fn a_hook_that_sets_the_learning_rate_ends_the_search() {
    let mut trainer = model::builder().hook(OwnRate::default()).epochs(1).build().unwrap();
    let error =
        trainer.find_lr(&mut rows(16), &LearningRateFinder::new().from(1e-3)).unwrap_err().to_string();
    assert_eq!(
        error,
        "`find_lr`: a hook set a learning rate to 0.5, but the search had set it to 0.001: give the hook `#[hook(trial = false)]`"
    );
}

#[test]
fn lookahead_and_stochastic_depth_run_in_a_finder() {
    let losses = |add: fn(TrainerBuilder<_>) -> TrainerBuilder<_>| {
        let builder = Trainer::builder(model::named_task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
        let mut trainer: Trainer<_> = add(builder.epochs(1)).build().unwrap();
        trainer.fit(&mut rows(16), None).unwrap();
        let before = exact_state(&trainer);
        let with = LearningRateFinder::new().from(1e-2).to(1.0).steps(20);
        let curve = trainer.find_lr(&mut rows(16), &with).unwrap();
        assert_eq!(exact_state(&trainer), before);
        assert_eq!(own_warnings(&trainer.fit(&mut rows(16), None).unwrap()), [""; 0]);
        curve.points().iter().map(|point| point.loss).collect::<Vec<_>>()
    };
    let bare = losses(|builder| builder);
    assert_ne!(losses(|builder| builder.hook(Lookahead::new(2, 0.5))), bare);
    assert_ne!(losses(|builder| builder.hook(StochasticDepth::new("fc1", 0.5))), bare);
}

#[cfg(target_os = "linux")]
use trainer::testing::SmallTask;

/// Builds a trainer on each rank, whose initial weights differ between the ranks.
#[cfg(target_os = "linux")]
fn on_ranks(change: fn(TrainerBuilder<SmallTask>) -> TrainerBuilder<SmallTask>) -> Trainer<SmallTask> {
    let vars = nn::VarStore::new(Device::Cpu);
    let config = nn::LinearConfig::default();
    let net = nn::seq()
        .add(nn::linear(vars.root() / "fc1", 4, 8, config))
        .add_fn(Tensor::relu)
        .add(nn::linear(vars.root() / "fc2", 8, 3, config));
    let rank = trainer::distributed::Launch::from_env().unwrap().map_or(0, |launch| launch.rank());
    tch::no_grad(|| {
        for (name, mut weight) in vars.variables() {
            let shift = name.len() as f64 + 0.01 * f64::from(rank);
            let values = Tensor::arange(weight.numel() as i64, (Kind::Float, Device::Cpu));
            weight.copy_(&((values + shift).sin() * 0.5).view_as(&weight));
        }
    });
    let loss: fn(&Tensor, &Tensor) -> Tensor = |logits, labels| logits.cross_entropy_for_logits(labels);
    let task = Supervised::new(vars, net, loss);
    change(Trainer::builder(task).optimizer(Sgd::new(0.5)).discover(Discover::None)).build().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn finders_on_several_ranks_give_the_answer_of_one_process_and_restore_everything() {
    use trainer::optim::Sharded;
    use trainer::testing::Ranks;

    let changes: [fn(TrainerBuilder<SmallTask>) -> TrainerBuilder<SmallTask>; 3] = [
        |builder| builder,
        |builder| builder.hook(Ema::new(0.9)).clip_grad_norm(1.0).accumulate(2),
        |builder| builder.optimizer(Sharded::new(Sgd::new(0.5).momentum(0.9))),
    ];
    let find = |count: u32| {
        let all = Ranks::new(count).run(|| {
            let with = LearningRateFinder::new().from(1e-4).to(1.0).steps(20).smoothing(0.9);
            let mut found = Vec::new();
            for change in changes {
                let mut trainer = on_ranks(change);
                let weights = |trainer: &Trainer<SmallTask>| {
                    let all = trainer.task().vars().trainable_variables();
                    all.iter().map(|weight| weight.sum(Kind::Double).double_value(&[])).collect::<Vec<_>>()
                };
                let before = weights(&trainer);
                // Rows of uneven shares: the batches have 5 rows, the last one has 1.
                let curve = trainer.find_lr(&mut sized(16, 5), &with)?;
                assert_eq!(weights(&trainer), before);
                // An error that all ranks return does not disconnect them.
                let diverged = LearningRateFinder::new().from(1e5).to(1e9);
                assert!(trainer.find_lr(&mut sized(16, 5), &diverged).is_err());
                let losses = curve.points().iter().map(|point| point.loss).collect::<Vec<_>>();
                trainer.fit(&mut sized(16, 5), None)?;
                found.push((curve.suggestion(), losses));
            }
            let mut trainer = on_ranks(changes[1]);
            let search = BatchSizeFinder::new().from(1).max(24).steps(1);
            let size = trainer.find_batch_size(|size| Ok(sized(20, size)), &search)?.size;
            trainer.fit(&mut sized(16, 5), None)?;
            Ok((found, size))
        });
        all.unwrap()
    };
    let alone = find(1);
    for (rank, (found, size)) in find(2).into_iter().enumerate() {
        assert_eq!(size, alone[0].1, "rank {rank}");
        for ((suggestion, losses), (expected, other)) in found.iter().zip(&alone[0].0) {
            let is_close = losses.iter().zip(other).all(|(one, other)| (one - other).abs() < 1e-5);
            assert!(losses.len() == other.len() && is_close, "rank {rank}: {losses:?} {other:?}");
            assert_eq!(suggestion, expected, "rank {rank}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_runs_out_on_one_rank_limits_the_batch_size_of_all_ranks() {
    use trainer::testing::Ranks;

    let found = Ranks::new(2).run(|| {
        let mut trainer = on_ranks(|builder| builder);
        let rank = trainer::distributed::Launch::from_env()?.unwrap().rank();
        let loader = |size: usize| {
            if rank == 1 && size > 13 {
                return Err(Error::msg(
                    "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes",
                ));
            }
            Ok(sized(100, size))
        };
        let found = trainer.find_batch_size(loader, &BatchSizeFinder::new().from(2).max(64).steps(1))?;
        Ok((found.size, found.limit == BatchSizeLimit::Memory))
    });
    assert_eq!(found.unwrap(), [(13, true), (13, true)]);
}
