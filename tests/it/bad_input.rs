//! What goes wrong with data, tasks and modes: each has one clear error, or is documented to be as it is.

use trainer::data::{Batches, from_fn};
use trainer::prelude::*;

use crate::model::{self, builder, told};

/// A task whose loss is made of one parameter, in a way that the test chooses.
struct Scalar<F>(nn::VarStore, Tensor, F);

impl<F: Fn(&Tensor) -> Tensor + Send + 'static> Scalar<F> {
    fn new(loss: F) -> Self {
        let vs = nn::VarStore::new(Device::Cpu);
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
    from_fn(|_| (0..2).map(|_| Tensor::ones([2], (Kind::Float, Device::Cpu))))
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
fn a_loss_that_cannot_be_trained_on_is_told() {
    assert_eq!(
        told(&Scalar::new(Tensor::shallow_clone).fit().unwrap_err()),
        "failed at loss, epoch 0, batch 0 on a batch of Float [2]: the loss has the shape [2], and is to be one number: \
         reduce it, `.mean(Kind::Float)`"
    );
    assert_eq!(
        told(&Scalar::new(|pred| pred.detach().sum(Kind::Float)).fit().unwrap_err()),
        "failed at backward, epoch 0, batch 0 on a batch of Float [2]: the loss carries no gradient: is every parameter \
         frozen, or the loss detached?"
    );
}

/// The square root has no gradient at 0: NaN, as soon as it is multiplied by 0.
fn nan_gradient(pred: &Tensor) -> Tensor {
    (pred.sqrt() * 0.0).sum(Kind::Float)
}

#[test]
fn nan_goes_on_unless_it_is_looked_for() {
    // A check would wait for the device at each step, so that none is made unasked.
    assert!(Scalar::new(nan_gradient).fit().unwrap().metrics["train/loss"].is_nan());
    let watched =
        Trainer::builder(Scalar::new(nan_gradient)).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let error = watched.detect_anomaly(true).build().unwrap().fit(&mut ones(), None).unwrap_err();
    let text = told(&error);
    assert!(text.starts_with("failed at backward, epoch 0, batch 0 on a batch of Float [2]: "), "{text}");
    assert!(text.contains("SqrtBackward0' returned nan values"), "{text}");
}

#[test]
fn modes_hold_while_an_entry_runs_and_no_longer() {
    // What shows the mode: memory that is not set is filled with NaN.
    let is_filled = || Tensor::empty([64], (Kind::Float, Device::Cpu)).isnan().all().int64_value(&[]) == 1;
    let mut trainer = builder()
        .deterministic(true)
        .on::<AfterStep>("filled", move |cx| {
            let filled = is_filled();
            cx.log("filled", u8::from(filled));
        })
        .build()
        .unwrap();
    assert_eq!(trainer.fit(&mut model::rows(8), None).unwrap().metrics["train/filled"], 1.0);
    // A caller that has turned gradients off still trains, and finds them off.
    let summary = tch::no_grad(|| {
        let summary = builder().build().unwrap().fit(&mut model::rows(8), None);
        let one = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        assert!(!one.square().requires_grad());
        summary
    });
    assert!(summary.unwrap().counters.optimizer_steps == 2);
}

#[test]
fn a_batch_that_cannot_be_described_keeps_no_hook_from_cleaning_up() {
    struct Odd(nn::VarStore);

    /// Panics where it is to be described.
    struct Shy;

    impl Batch for Shy {
        fn samples(&self) -> Option<u64> {
            None
        }
        fn move_to(&mut self, _: Device) {}
        fn describe(&self, _: &mut String) {
            panic!("not for me");
        }
    }

    impl Task for Odd {
        type Batch = Shy;
        type Pred = ();

        fn vars(&self) -> &nn::VarStore {
            &self.0
        }
        fn pred(&mut self, _: &Shy, _: Mode) -> Result<()> {
            Err(Error::msg("the real error"))
        }
        fn loss(&mut self, (): &(), _: &Shy) -> Result<Tensor> {
            unreachable!()
        }
    }

    let odd = Trainer::builder(Odd(nn::VarStore::new(Device::Cpu))).discover(Discover::None);
    let mut trainer = odd.on::<Teardown>("teardown", |cx| cx.log("teardown", 1)).build().unwrap();
    let error = trainer.test(&mut from_fn(|_| [Shy])).unwrap_err().to_string();
    assert_eq!(
        error,
        "failed at pred (test), epoch 0, batch 0 on a batch that cannot be described: the real error"
    );
}

/// Announces so many batches, and has others.
struct Liar {
    announced: u64,
    real: Vec<u64>,
}

impl Loader<(Tensor, Tensor)> for Liar {
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
fn a_pass_ends_where_the_data_does_whatever_was_announced() {
    let steps = |announced: u64, real: &[u64]| {
        let mut trainer = builder().epochs(2).accumulate(2).build().unwrap();
        let mut loader = Liar { announced, real: real.to_vec() };
        let step = trainer.fit(&mut loader, None).unwrap().counters;
        (step.batches_seen, step.optimizer_steps)
    };
    assert_eq!(steps(5, &[3, 3]), (6, 4), "it ends early: the last window is closed all the same");
    assert_eq!(steps(2, &[5, 5]), (10, 6), "it has more");
    assert_eq!(steps(4, &[4, 1]), (5, 3), "it changes from epoch to epoch");
    let mut trainer = builder().epochs(2).build().unwrap();
    let error = told(&trainer.fit(&mut Liar { announced: 4, real: vec![4, 0] }, None).unwrap_err());
    assert!(
        error.starts_with("failed at train_epoch, epoch 1, batch 0: the loader gave no batch"),
        "{error}"
    );
}

#[test]
fn a_loader_that_fails_does_in_its_turn_also_where_it_is_drawn_ahead() {
    let failing = || {
        from_fn(|_| {
            let mut rows = model::rows(12);
            let batches: Vec<_> = rows.batches(0, 0).unwrap().collect();
            batches.into_iter().chain([Err(Error::msg("disk on fire"))])
        })
    };
    for accumulate in [1, 2, 7] {
        let mut trainer = builder().accumulate(accumulate).build().unwrap();
        let error = told(&trainer.fit(&mut failing(), None).unwrap_err());
        assert_eq!(error, "failed at train_epoch, epoch 0, batch 3: disk on fire");
        // The next fit begins with the next epoch, and with no gradient of this one.
        assert_eq!(trainer.counters().epoch, 0);
        let step = trainer.fit(&mut model::rows(8), None).unwrap().counters;
        assert_eq!((step.epoch, step.batches_seen), (1, 5));
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    // The generator is one for the whole process, and tests run side by side: only what is seeded right before it is read
    // tells something, so that this looks again if another test came between.
    let first = |seed: u64| {
        let mut trainer = builder()
            .seed(seed)
            .on::<Setup>("draw", |cx| cx.log("drawn", Tensor::randn([1], (Kind::Double, Device::Cpu))))
            .build()
            .unwrap();
        [0, 1].map(|_| trainer.fit(&mut model::rows(4), None).unwrap().metrics["train/drawn"])
    };
    let is_so = || {
        let ([one, second], [again, _], [other, _]) = (first(7), first(7), first(8));
        one == again && one != other && one != second
    };
    assert!((0..100).any(|_| is_so()));
}

#[test]
fn a_nested_seeded_run_leaves_the_random_numbers_of_the_outer_one_as_they_were() {
    let random = || Tensor::randn([1], (Kind::Double, Device::Cpu)).double_value(&[]);
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
    // As above: other tests draw from the same generator.
    let is_so = || {
        let (alone, with, again) = (outer(None), outer(Some(7)), outer(Some(8)));
        alone.0 == with.0 && with.0 == again.0 && with.1 == Some(alone.0[0]) && with.1 != again.1
    };
    assert!((0..100).any(|_| is_so()));
}

const SCENE: &str = "TRAINER_TESTS_SEEDS";

/// The program that is watched: two threads, each of which trains while the other does, twice.
#[test]
#[ignore = "a part of another test, run by it in a process of its own"]
fn child() {
    let seeds = std::env::var(SCENE).unwrap();
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
                    // The loader is asked for batches while the entry runs.
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
fn seeded_runs_that_overlap_are_reported_once() {
    let warnings = |seeds: &str| {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bad_input::child", "--ignored", "--nocapture"])
            .env(SCENE, seeds)
            .output()
            .unwrap();
        let said = String::from_utf8(child.stderr).unwrap();
        assert!(child.status.success(), "{said}");
        said.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    for seeds in ["7 7", "7 none"] {
        let said = warnings(seeds);
        assert!(said.len() == 1 && said[0].contains("`fit` with `.seed(7)`"), "{seeds}: {said:?}");
        assert!(said[0].contains("neither is reproducible"), "{seeds}: {said:?}");
    }
    assert!(warnings("none none").is_empty());
    assert!(warnings("7").is_empty());
}

/// Goes around an operation, and does nothing.
struct Through;

#[hook]
impl Through {
    #[hook(around = backward)]
    fn around(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
        next.run_then(cx, |_| {})
    }
}

/// The same, further outside.
struct ThroughFit;

#[hook]
impl ThroughFit {
    #[hook(around = fit)]
    fn around(&mut self, cx: &mut Cx<Fit>, next: Next<Fit>) -> Result<()> {
        next.run(cx)
    }
}

#[test]
fn hooks_around_operations_are_refused_before_they_overflow_the_stack() {
    let with = |backward: usize, fit: usize| {
        let settings = (0..backward).fold(builder(), |settings, _| settings.hook(Through));
        (0..fit).fold(settings, |settings, _| settings.hook(ThroughFit)).build()
    };
    // A test has a thread of 2 MiB.
    let summary = with(400, 100).unwrap().fit(&mut model::rows(4), None).unwrap();
    assert_eq!(summary.counters.optimizer_steps, 1);
    for (backward, fit) in [(20_000, 0), (400, 101)] {
        assert_eq!(
            with(backward, fit).unwrap_err().to_string(),
            format!(
                "the trainer cannot be built: {} hooks go around operations, {backward} of them around `backward`, and the stack \
                 has room for 500: merge some of them, or move them to the points before and after the operation",
                backward + fit
            )
        );
    }
}

/// Runs a trainer that has it as a hook too.
struct Recursive;

#[hook]
impl Recursive {
    fn setup(&mut self, _: &mut Cx<Setup>) -> Result<()> {
        builder().hook(Recursive).build()?.fit(&mut model::rows(4), None).map(drop)
    }
}

#[test]
fn a_hook_that_runs_a_trainer_with_itself_ends_with_an_error() {
    let error = builder().hook(Recursive).build().unwrap().fit(&mut model::rows(4), None).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with(
            ": the entry `fit` is nested more than 16 deep on this thread (`fit` (16 times)): a hook that runs a trainer with the \
             same discovered hooks calls itself without end; build the inner trainer with `.discover(Discover::None)`"
        ),
        "{text}"
    );
    // What was refused has left nothing behind.
    for _ in 0..20 {
        builder().build().unwrap().fit(&mut model::rows(4), None).unwrap();
    }
}

#[test]
fn hooks_around_operations_are_counted_over_nested_trainers() {
    let inner = || (0..300).fold(builder(), |settings, _| settings.hook(Through)).build().unwrap();
    let nested = (0..300)
        .fold(builder(), |settings, _| settings.hook(Through))
        .on::<AfterStep>("nested", move |_| inner().fit(&mut model::rows(4), None).map(drop));
    let error = nested.build().unwrap().fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(
        error.ends_with(
            ": 600 hooks go around operations of the nested entries `fit` → `fit`, and the stack of one thread has room for 500: \
             run the inner trainer on a thread of its own, or with fewer of these hooks"
        ),
        "{error}"
    );
}
