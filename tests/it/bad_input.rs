//! Invalid data, tasks and modes: each has one clear error, or documented behavior.

use trainer::data::{Batches, from_fn};
use trainer::prelude::*;

use crate::model::{self, builder, message};
use crate::support;
use crate::support::device;

/// A task with one parameter, whose loss is computed by a function that the test passes.
struct Scalar<F>(nn::VarStore, Tensor, F);

impl<F: Fn(&Tensor) -> Tensor + Send + 'static> Scalar<F> {
    fn new(loss: F) -> Self {
        let vs = nn::VarStore::new(device());
        let weight = vs.root().zeros("weight", &[2]);
        Scalar(vs, weight, loss)
    }

    fn fit(self) -> Result<Summary> {
        Trainer::builder(self)
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .build()?
            .fit(&mut ones(), None)
    }
}

fn ones() -> impl Loader<Tensor> {
    from_fn(|_| (0..2).map(|_| Tensor::ones([2], (Kind::Float, device()))))
}

impl<F: Fn(&Tensor) -> Tensor + Send + 'static> Task for Scalar<F> {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(&self.1 * batch)
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok((self.2)(pred))
    }
}

#[test]
fn a_loss_without_gradient_or_with_several_elements_is_reported() {
    assert_eq!(
        message(&Scalar::new(Tensor::shallow_clone).fit().unwrap_err()),
        "failed at loss, epoch 0, batch 0 on a batch of Float [2]: the loss must be a scalar, but has shape [2]: \
         reduce it, for example with `.mean(Kind::Float)`"
    );
    assert_eq!(
        message(&Scalar::new(|pred| pred.detach().sum(Kind::Float)).fit().unwrap_err()),
        "failed at backward, epoch 0, batch 0 on a batch of Float [2]: the loss does not require gradients: check that \
         some parameters are trained, and that the loss is not detached"
    );
}

/// Returns a loss of 0 with a NaN gradient: the square root has an infinite gradient at 0, which is
/// multiplied by 0.
fn nan_gradient(pred: &Tensor) -> Tensor {
    (pred.sqrt() * 0.0).sum(Kind::Float)
}

#[test]
fn nan_gradients_are_reported_only_with_detect_anomaly() {
    // There is no check by default, because it would synchronize with the device in each step.
    assert!(Scalar::new(nan_gradient).fit().unwrap().metrics["train/loss"].is_nan());
    let watched =
        Trainer::builder(Scalar::new(nan_gradient)).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let error = watched.detect_anomaly(true).build().unwrap().fit(&mut ones(), None).unwrap_err();
    let text = message(&error);
    assert!(text.starts_with("failed at backward, epoch 0, batch 0 on a batch of Float [2]: "), "{text}");
    assert!(text.contains("SqrtBackward0' returned nan values"), "{text}");
}

#[test]
fn deterministic_and_gradient_modes_apply_only_while_an_entry_point_runs() {
    // In deterministic mode, libtorch fills uninitialized memory with NaN.
    let is_filled = || Tensor::empty([64], (Kind::Float, device())).isnan().all().int64_value(&[]) == 1;
    let mut trainer = builder()
        .deterministic(true)
        .on::<AfterStep>("filled", move |cx| {
            let filled = is_filled();
            cx.log("filled", u8::from(filled));
        })
        .build()
        .unwrap();
    assert_eq!(trainer.fit(&mut model::rows(8), None).unwrap().metrics["train/filled"], 1.0);
    // Training enables gradients within a caller's `no_grad`, and restores that mode.
    let summary = tch::no_grad(|| {
        let summary = builder().build().unwrap().fit(&mut model::rows(8), None);
        let one = Tensor::ones([1], (Kind::Float, device())).set_requires_grad(true);
        assert!(!one.square().requires_grad());
        summary
    });
    assert!(summary.unwrap().counters.optimizer_steps == 2);
}

#[test]
fn a_batch_whose_description_panics_does_not_hide_the_original_error() {
    struct Failing(nn::VarStore);

    /// A batch whose description panics.
    struct Indescribable;

    impl Batch for Indescribable {
        fn samples(&self) -> Option<u64> {
            None
        }
        fn describe(&self, _: &mut String) {
            panic!("cannot be described");
        }
        fn tensors(&self, _: &mut dyn FnMut(&Tensor)) {}
        fn tensors_mut(&mut self, _: &mut dyn FnMut(&mut Tensor)) {}
    }

    impl Task for Failing {
        type Batch = Indescribable;
        type Pred = ();

        fn vars(&self) -> &nn::VarStore {
            &self.0
        }
        fn pred(&mut self, _: &Indescribable, _: Mode) -> Result<()> {
            Err(Error::msg("the real error"))
        }
        fn loss(&mut self, (): &(), _: &Indescribable) -> Result<Tensor> {
            unreachable!()
        }
    }

    let builder = Trainer::builder(Failing(nn::VarStore::new(device()))).discover(Discover::None);
    let mut trainer = builder.on::<Teardown>("teardown", |cx| cx.log("teardown", 1)).build().unwrap();
    let error = trainer.test(&mut from_fn(|_| [Indescribable])).unwrap_err().to_string();
    assert_eq!(
        error,
        "failed at pred (test), epoch 0, batch 0 on a batch that cannot be described: the real error"
    );
}

/// A loader that announces one number of batches and yields another, which depends on the epoch.
struct Misannounced {
    announced: u64,
    real: Vec<u64>,
}

impl Loader<(Tensor, Tensor)> for Misannounced {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, (Tensor, Tensor)>> {
        let real = self.real[usize::try_from(epoch).unwrap() % self.real.len()];
        let mut rows = model::rows(4);
        let batch = move || rows.batches(0, 0)?.next().unwrap();
        Ok(Box::new(std::iter::repeat_with(batch).take(usize::try_from(real - start).unwrap())))
    }
    fn len(&self) -> Option<u64> {
        Some(self.announced)
    }
}

#[test]
fn a_pass_ends_when_its_data_ends_regardless_of_the_announced_length() {
    let steps = |announced: u64, real: &[u64]| {
        let mut trainer = builder().epochs(2).accumulate(2).build().unwrap();
        let mut loader = Misannounced { announced, real: real.to_vec() };
        let step = trainer.fit(&mut loader, None).unwrap().counters;
        (step.batches_seen, step.optimizer_steps)
    };
    assert_eq!(steps(5, &[3, 3]), (6, 4), "fewer: the last window still closes");
    assert_eq!(steps(2, &[5, 5]), (10, 6), "more");
    assert_eq!(steps(4, &[4, 1]), (5, 3), "another number in each epoch");
    let mut trainer = builder().epochs(2).build().unwrap();
    let error =
        message(&trainer.fit(&mut Misannounced { announced: 4, real: vec![4, 0] }, None).unwrap_err());
    assert!(
        error.starts_with("failed at train_epoch, epoch 1, batch 0: the loader yielded no batches"),
        "{error}"
    );
}

#[test]
fn a_loader_error_surfaces_at_its_batch_despite_lookahead() {
    let failing = || {
        from_fn(|_| {
            let mut rows = model::rows(12);
            let batches: Vec<_> = rows.batches(0, 0).unwrap().collect();
            batches.into_iter().chain([Err(Error::msg("disk on fire"))])
        })
    };
    for accumulate in [1, 2, 7] {
        let mut trainer = builder().accumulate(accumulate).build().unwrap();
        let error = message(&trainer.fit(&mut failing(), None).unwrap_err());
        assert_eq!(error, "failed at train_epoch, epoch 0, batch 3: disk on fire");
        // The next fit begins with the next epoch, without gradients of this one.
        assert_eq!(trainer.counters().epoch, 0);
        let step = trainer.fit(&mut model::rows(8), None).unwrap().counters;
        assert_eq!((step.epoch, step.batches_seen), (1, 5));
    }
}

#[test]
fn the_same_seed_draws_the_same_random_numbers() {
    // The process has one generator and tests run in parallel, so another test may draw from it in
    // between: the comparison is repeated until it was undisturbed once.
    let first = |seed: u64| {
        let mut trainer = builder()
            .seed(seed)
            .on::<Setup>("draw", |cx| cx.log("drawn", Tensor::randn([1], (Kind::Double, device()))))
            .build()
            .unwrap();
        [0, 1].map(|_| trainer.fit(&mut model::rows(4), None).unwrap().metrics["train/drawn"])
    };
    let is_undisturbed = || {
        let [one, second] = first(7);
        let [again, _] = first(7);
        let [other, _] = first(8);
        one == again && one != other && one != second
    };
    assert!((0..100).any(|_| is_undisturbed()));
}

#[test]
fn a_nested_seeded_run_does_not_affect_the_random_numbers_of_the_outer_run() {
    let random = || Tensor::randn([1], (Kind::Double, device())).double_value(&[]);
    let outer = move |inner: Option<u64>| {
        let mut trainer = builder()
            .seed(7)
            .on::<Setup>("draw", move |cx| {
                cx.log("first", random());
                if let Some(seed) = inner {
                    let nested =
                        builder().seed(seed).on::<Setup>("draw", move |cx| cx.log("inner", random()));
                    let summary = nested.build().unwrap().fit(&mut model::rows(4), None).unwrap();
                    cx.log("inner", summary.metrics["train/inner"]);
                }
                cx.log("second", random());
            })
            .build()
            .unwrap();
        let metrics = trainer.fit(&mut model::rows(4), None).unwrap().metrics;
        let inner = inner.map(|_| metrics["train/inner"]);
        ([metrics["train/first"], metrics["train/second"]], inner)
    };
    // Repeated as above, because other tests draw from the same generator.
    let is_undisturbed = || {
        let alone = outer(None);
        let with = outer(Some(7));
        let again = outer(Some(8));
        alone.0 == with.0 && with.0 == again.0 && with.1 == Some(alone.0[0]) && with.1 != again.1
    };
    assert!((0..100).any(|_| is_undisturbed()));
}

const SEEDS: &str = "TRAINER_TESTS_SEEDS";

/// The program under test: one thread for each seed in the environment. All threads train at the
/// same time, twice.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_in_one_thread_per_seed() {
    let seeds = std::env::var(SEEDS).unwrap();
    let seeds: Vec<Option<u64>> = seeds.split(' ').map(|seed| seed.parse().ok()).collect();
    let barrier = std::sync::Barrier::new(seeds.len());
    std::thread::scope(|scope| {
        for seed in seeds {
            let barrier = &barrier;
            scope.spawn(move || {
                for _ in 0..2 {
                    let settings = builder();
                    let settings = if let Some(seed) = seed { settings.seed(seed) } else { settings };
                    let mut trainer = settings.build().unwrap();
                    // The loader's closure is called while the entry point runs.
                    let mut rows = from_fn(|_| {
                        barrier.wait();
                        model::rows(4).batches(0, 0).unwrap().map(Result::unwrap).collect::<Vec<_>>()
                    });
                    trainer.fit(&mut rows, None).unwrap();
                }
            });
        }
    });
}

#[test]
fn overlapping_seeded_runs_are_reported_once() {
    let warnings = |seeds: &str| {
        let child = support::child_process("bad_input::trains_in_one_thread_per_seed")
            .env(SEEDS, seeds)
            .output()
            .unwrap();
        let stderr = String::from_utf8(child.stderr).unwrap();
        assert!(child.status.success(), "{stderr}");
        stderr.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    for seeds in ["7 7", "7 none"] {
        let stderr = warnings(seeds);
        assert!(stderr.len() == 1 && stderr[0].contains("`fit` with `.seed(7)`"), "{seeds}: {stderr:?}");
        assert!(stderr[0].contains("neither is reproducible"), "{seeds}: {stderr:?}");
    }
    assert!(warnings("none none").is_empty());
    assert!(warnings("7").is_empty());
}

/// Wraps `backward` without changing anything.
struct Through;

#[hook]
impl Through {
    fn around(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.run_then(cx, |_| {})
    }
}

/// Wraps `fit` without changing anything.
struct ThroughFit;

#[hook]
impl ThroughFit {
    fn around(&mut self, cx: &mut Cx<Fit>, next: Next<Fit>) -> Result<Done> {
        next.run(cx)
    }
}

#[test]
fn too_many_around_hooks_are_refused_before_they_overflow_the_stack() {
    let with = |backward: usize, fit: usize| {
        let settings = (0..backward).fold(builder(), |settings, _| settings.hook(Through));
        (0..fit).fold(settings, |settings, _| settings.hook(ThroughFit)).build()
    };
    // The thread of a test has a stack of 2 MiB.
    let summary = with(400, 100).unwrap().fit(&mut model::rows(4), None).unwrap();
    assert_eq!(summary.counters.optimizer_steps, 1);
    for (backward, fit) in [(20_000, 0), (400, 101)] {
        assert_eq!(
            with(backward, fit).unwrap_err().to_string(),
            format!(
                "the trainer cannot be built: there are {} `around` hooks, {backward} of them around `backward`, but the stack \
                 only has room for 500: merge some of them, or move them to the points before and after the operation",
                backward + fit
            )
        );
    }
}

/// Runs, in `setup`, another trainer that has this hook.
struct Recursive;

#[hook]
impl Recursive {
    fn setup(&mut self, _: &mut Cx<Setup>) -> Result<()> {
        builder().hook(Recursive).build()?.fit(&mut model::rows(4), None).map(drop)
    }
}

#[test]
fn unbounded_recursion_of_nested_trainers_is_an_error() {
    let error = builder().hook(Recursive).build().unwrap().fit(&mut model::rows(4), None).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with(
            ": the entry point `fit` is nested more than 16 deep on this thread (`fit` (16 times)): if a hook runs a trainer with the \
             same discovered hooks, it calls itself endlessly; build the inner trainer with `.discover(Discover::None)`"
        ),
        "{text}"
    );
    // The refused calls do not count toward later ones.
    for _ in 0..20 {
        builder().build().unwrap().fit(&mut model::rows(4), None).unwrap();
    }
}

#[test]
fn around_hooks_of_nested_trainers_count_toward_one_limit() {
    let inner = || (0..300).fold(builder(), |settings, _| settings.hook(Through)).build().unwrap();
    let nested = (0..300)
        .fold(builder(), |settings, _| settings.hook(Through))
        .on::<AfterStep>("nested", move |_| inner().fit(&mut model::rows(4), None).map(drop));
    let error = nested.build().unwrap().fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(
        error.ends_with(
            ": the nested entry points `fit` → `fit` have 600 `around` hooks, but the stack of one thread only has room for 500: \
             run the inner trainer on a separate thread, merge some of the hooks, or move them to the points before and \
             after the operation"
        ),
        "{error}"
    );
}
