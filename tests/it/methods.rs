//! The training methods: `MixUp`, `CutMix`, `LabelSmoothing`, `Sam`, `GradientNoise`, `Lookahead`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::hooks::{Amp, Checkpoint, CutMix, GradientNoise, LabelSmoothing, Lookahead, MixUp, Sam};
use trainer::prelude::*;

use crate::amp::elementwise;
use crate::model::{self, message, rows};
use crate::support::{
    cancelled_at, child_process, device, distance, exact_state, flat_parameters, parameters, scratch,
};

/// The environment variable with the folder of a child process.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";

/// Returns images in which the channel of their class is 1 and the other channels are 0, in batches
/// of six.
fn one_channel(count: i64) -> InMemory<(Tensor, Tensor)> {
    let labels = Tensor::arange(count, (Kind::Int64, device())).remainder(3);
    let images =
        labels.one_hot(3).to_kind(Kind::Float).view([count, 3, 1, 1]).expand([count, 3, 3, 4], false);
    InMemory::new((images.contiguous(), labels)).unwrap().batch_size(6)
}

type Batches = Arc<Mutex<Vec<(Phase, Tensor, Tensor)>>>;

/// Trains one epoch with validation, and returns each batch as the model sees it.
fn batches(hook: impl FnOnce(TrainerBuilder<ImagesTask>) -> TrainerBuilder<ImagesTask>) -> Batches {
    let seen = Batches::default();
    let note = seen.clone();
    let builder = hook(images(Sgd::new(0.1))).on::<BeforePred>("batch", move |cx| {
        let (images, targets) = cx.batch::<(Tensor, Tensor)>()?;
        note.lock().unwrap().push((cx.phase(), images.copy(), targets.copy()));
        Ok(())
    });
    let mut data = one_channel(12);
    builder.build().unwrap().fit(&mut data, Some(&mut one_channel(6))).unwrap();
    seen
}

type ImagesLoss = fn(&Tensor, &Tensor) -> Tensor;
type ImagesTask = Supervised<nn::Func<'static>, ImagesLoss>;

/// Returns a builder for a classifier of images of 3 × 4 pixels, whose loss takes class indices or
/// probabilities.
fn images(optimizer: impl Optimizer + 'static) -> TrainerBuilder<ImagesTask> {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(device());
    let fc = nn::linear(vs.root() / "fc", 3 * 12, 3, Default::default());
    let net = nn::func(move |images| images.flatten(1, -1).apply(&fc));
    let loss: ImagesLoss =
        |logits, targets| logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0);
    Trainer::builder(Supervised::new(vs, net, loss)).optimizer(optimizer).discover(Discover::None)
}

#[test]
fn a_loss_of_class_indices_after_mixing_is_an_error_that_names_the_cause() {
    let seen = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&seen);
    let mut trainer = model::builder()
        .hook(MixUp::new(1.0).classes(3))
        .on::<AfterError>("note", move |cx| *noted.lock().unwrap() = cx.error().to_string())
        .build()
        .unwrap();
    // The loss of the model panics, because tch's `cross_entropy_for_logits` does.
    let fit = std::panic::AssertUnwindSafe(|| trainer.fit(&mut rows(8), None));
    assert!(std::panic::catch_unwind(fit).is_err());
    let text = seen.lock().unwrap();
    assert!(text.contains("use a loss that accepts both, such as `cross_entropy_loss`"), "{text}");
}

#[test]
fn targets_are_mixed_like_inputs_but_only_in_training() {
    type With = fn(TrainerBuilder<ImagesTask>) -> TrainerBuilder<ImagesTask>;
    let hooks: [With; 2] = [
        |builder| builder.hook(MixUp::new(1.0).classes(3)),
        |builder| builder.hook(CutMix::new(1.0).classes(3)),
    ];
    for hook in hooks {
        // With few small batches, a run may happen to leave all of them unmixed.
        assert!((0..20).any(|_| checked_batches_are_mixed(hook)));
    }
}

/// Trains and validates on images whose fraction of each class is known, and checks the targets.
/// Returns whether a sample was mixed with one of another class.
fn checked_batches_are_mixed(hook: fn(TrainerBuilder<ImagesTask>) -> TrainerBuilder<ImagesTask>) -> bool {
    let seen = batches(hook);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    for (phase, images, targets) in seen.iter() {
        // The fraction of each class in an image is its probability in the target.
        let fractions = images.mean_dim([-2, -1].as_slice(), false, Kind::Float);
        if *phase == Phase::Train {
            assert_eq!(targets.size(), [6, 3]);
            assert!(distance(&fractions, targets) < 1e-6);
        } else {
            assert_eq!((targets.kind(), targets.size()), (Kind::Int64, vec![6]));
        }
    }
    let probabilities = seen.iter().filter(|batch| batch.0 == Phase::Train).map(|batch| &batch.2);
    probabilities
        .into_iter()
        .any(|values| values.gt(0.01).logical_and(&values.lt(0.99)).any().int64_value(&[]) != 0)
}

#[test]
fn the_data_of_the_loader_is_never_changed() {
    let pixels = Tensor::rand([6, 3, 3, 4], (Kind::Float, device()));
    let labels = Tensor::arange(6, (Kind::Int64, device())).remainder(3);
    let before = (pixels.copy(), labels.copy());
    let mut data = from_fn(|_| [(pixels.shallow_clone(), labels.shallow_clone())]);
    let builder = images(Sgd::new(0.1)).epochs(3).hook(MixUp::new(1.0).classes(3)).hook(CutMix::new(1.0));
    builder.hook(LabelSmoothing::new(0.1)).build().unwrap().fit(&mut data, None).unwrap();
    assert_eq!((pixels, labels), before);
}

#[test]
fn labels_are_smoothed_with_and_without_mixing() {
    let alone = batches(|builder| builder.hook(LabelSmoothing::new(0.3).classes(3)));
    let (_, images, targets) = &alone.lock().unwrap()[0];
    let classes = images.mean_dim([-2, -1].as_slice(), false, Kind::Float);
    assert!(distance(&(&classes * 0.7 + 0.1), targets) < 1e-6);

    for smoothing_first in [false, true] {
        let smoothing = LabelSmoothing::new(0.3).classes(3);
        let mixing = MixUp::new(1.0).classes(3);
        let both = batches(|builder| {
            if smoothing_first {
                builder.hook(smoothing).hook(mixing)
            } else {
                builder.hook(mixing).hook(smoothing)
            }
        });
        let (_, images, targets) = &both.lock().unwrap()[0];
        let mixture = images.mean_dim([-2, -1].as_slice(), false, Kind::Float);
        assert!(distance(&(mixture * 0.7 + 0.1), targets) < 1e-6);
    }
}

/// A custom batch type.
#[derive(Batch)]
struct Pair {
    x: Tensor,
    y: Tensor,
}

struct Regression {
    vs: nn::VarStore,
    weight: Tensor,
}

impl Task for Regression {
    type Batch = Pair;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }
    fn pred(&mut self, batch: &Pair, _: Mode) -> Result<Tensor> {
        Ok(&batch.x * &self.weight)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Pair) -> Result<Tensor> {
        Ok(pred.mse_loss(&batch.y, Reduction::Mean))
    }
}

#[test]
fn custom_batches_and_real_valued_targets_can_be_mixed() {
    let vs = nn::VarStore::new(device());
    let weight = vs.root().zeros("weight", &[1]);
    let mut trainer = Trainer::builder(Regression { vs, weight })
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(MixUp::new(0.5).samples(|batch: &mut Pair| (&mut batch.x, &mut batch.y)))
        .on::<AfterLoss>("line", |cx| {
            let Pair { x, y } = cx.batch()?;
            assert!(
                distance(&(x * 2.0), y) < 1e-6,
                "mixtures of points on a line through 0 stay on the line"
            );
            Ok(())
        })
        .build()
        .unwrap();
    let x = Tensor::arange(8, (Kind::Float, device()));
    let mut data = from_fn(|_| [Pair { y: &x * 2.0, x: x.shallow_clone() }]);
    trainer.fit(&mut data, None).unwrap();
}

/// Trains with SAM as its paper describes it, without a trainer, and returns the parameters.
fn sam_by_hand(batches: &[(Tensor, Tensor)], rho: f64, lr: f64, adaptive: bool) -> Vec<(String, Tensor)> {
    let mut task = model::task();
    let named: Vec<(String, Tensor)> = task.vars().variables().into_iter().collect();
    let vars: Vec<Tensor> = named.iter().map(|(_, var)| var.shallow_clone()).collect();
    for batch in batches {
        let mut gradients = || {
            let pred = task.pred(batch, Mode::Train).unwrap();
            let loss = task.loss(&pred, batch).unwrap();
            Tensor::run_backward(&[loss], &vars, false, false)
        };
        let first = gradients();
        let scaled = |(var, grad): (&Tensor, &Tensor)| if adaptive { var.abs() * grad } else { grad.copy() };
        let squares =
            vars.iter().zip(&first).map(|pair| scaled(pair).square().sum(Kind::Double).double_value(&[]));
        let norm = squares.sum::<f64>().sqrt();
        let before: Vec<_> = vars.iter().map(|var| var.detach().copy()).collect();
        tch::no_grad(|| {
            for (var, grad) in vars.iter().zip(&first) {
                let direction = if adaptive { var.square() * grad } else { grad.copy() };
                let _ = var.shallow_clone().g_add_(&(direction * (rho / norm)));
            }
        });
        let second = gradients();
        tch::no_grad(|| {
            for ((var, before), grad) in vars.iter().zip(&before).zip(&second) {
                var.shallow_clone().copy_(&(before - grad * lr));
            }
        });
    }
    named
}

#[test]
fn sam_steps_with_the_gradients_at_the_perturbed_weights() {
    for adaptive in [false, true] {
        let mut data = rows(16);
        let batches: Vec<_> = data.batches(0, 0).unwrap().map(Result::unwrap).collect();
        let expected = sam_by_hand(&batches, 0.5, 0.1, adaptive);
        let losses = Arc::new(Mutex::new(Vec::new()));
        let note = losses.clone();
        let mut trainer = model::builder()
            .hook(Sam::new(0.5).adaptive(adaptive))
            .on::<AfterStep>("loss", move |cx| note.lock().unwrap().push(cx.step_loss().unwrap()))
            .build()
            .unwrap();
        let summary = trainer.fit(&mut rows(16), None).unwrap();
        for (name, expected) in expected {
            let own = trainer.vars().get(&name).unwrap();
            assert!(distance(&own, &expected) < 1e-6, "{name}, adaptive: {adaptive}");
        }
        let mut plain = model::builder().build().unwrap();
        plain.fit(&mut rows(16), None).unwrap();
        assert!(distance(&flat_parameters(&plain), &flat_parameters(&trainer)) > 1e-4);

        // The logged loss is the one at the unperturbed weights, and it is logged once.
        let losses = losses.lock().unwrap();
        let mean = losses.iter().map(|loss| loss.double_value(&[])).sum::<f64>() / 4.0;
        assert!((summary.metrics["train/loss"] - mean).abs() < 1e-6);
    }
}

#[test]
fn sam_with_clipping_computes_the_same_weights_in_mixed_precision() {
    let train = |amp: Option<Amp>| {
        let builder = elementwise().epochs(3).clip_grad_norm(0.1).hook(Sam::new(0.05));
        let builder = if let Some(amp) = amp { builder.hook(amp) } else { builder };
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut rows(24), None).unwrap();
        parameters(&trainer)
    };
    let plain = train(None);
    for amp in [Amp::bf16(), Amp::fp16()] {
        // The norm of scaled gradients is rounded differently.
        assert!(distance(&train(Some(amp))[0], &plain[0]) < 1e-6);
    }
    // Both forward passes are in bf16.
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let note = kinds.clone();
    let vs = nn::VarStore::new(device());
    let fc = nn::linear(vs.root() / "fc", 4, 3, Default::default());
    let net = nn::func(move |inputs| {
        let pred = inputs.apply(&fc);
        note.lock().unwrap().push(pred.kind());
        pred
    });
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
    builder.hook(Amp::bf16()).hook(Sam::new(0.05)).build().unwrap().fit(&mut rows(8), None).unwrap();
    assert_eq!(*kinds.lock().unwrap(), [Kind::BFloat16; 4]);
}

#[test]
fn an_error_or_a_panic_in_the_second_pass_of_sam_restores_the_weights() {
    for panics in [false, true] {
        let vs = nn::VarStore::new(device());
        let weight = vs.root().var("weight", &[4], nn::Init::Const(0.5));
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let net = nn::func(move |inputs| inputs * &weight);
        let loss = move |pred: &Tensor, _: &Tensor| {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            assert!(!(panics && call == 1), "the second pass panics");
            if call == 1 { pred.detach().sum(Kind::Float) } else { pred.square().sum(Kind::Float) }
        };
        let task = Supervised::new(vs, net, loss);
        let builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
        let mut trainer = builder.hook(Sam::new(0.05)).build().unwrap();
        let run = std::panic::AssertUnwindSafe(|| trainer.fit(&mut rows(8), None).is_err());
        assert_eq!(std::panic::catch_unwind(run).ok(), (!panics).then_some(true));
        assert_eq!(flat_parameters(&trainer), Tensor::full([4], 0.5, (Kind::Float, device())));
    }
}

#[test]
fn sam_has_no_second_pass_without_gradients() {
    let batches: Vec<_> = rows(16).batches(0, 0).unwrap().map(Result::unwrap).collect();
    let kept = [0, 2, 3].map(|nth: usize| (batches[nth].0.copy(), batches[nth].1.copy()));
    let expected = sam_by_hand(&kept, 0.5, 0.1, false);
    let builder = model::builder().hook(Sam::new(0.5)).on::<BeforeOptStep>("drop", |cx| {
        if cx.counters().batches_seen == 1 { cx.optimizer_mut()?.zero_grad() } else { Ok(()) }
    });
    let mut trainer = builder.build().unwrap();
    let summary = trainer.fit(&mut rows(16), None).unwrap();
    assert_eq!(summary.counters.optimizer_steps, 3);
    for (name, expected) in expected {
        assert!(distance(&trainer.vars().get(&name).unwrap(), &expected) < 1e-6, "{name}");
    }
}

/// Computes two losses in each step.
struct TwoLosses(ImagesTask);

impl Task for TwoLosses {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        self.0.vars()
    }
    fn pred(&mut self, batch: &Self::Batch, mode: Mode) -> Result<Tensor> {
        self.0.pred(batch, mode)
    }
    fn loss(&mut self, pred: &Tensor, batch: &Self::Batch) -> Result<Tensor> {
        self.0.loss(pred, batch)
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let forward = step.pred()?;
        let loss = step.loss(forward)?;
        let _ = step.backward(loss)?;
        let forward = step.pred()?;
        let loss = step.loss(forward)?;
        let gradients = step.backward(loss)?;
        step.opt_step(gradients)
    }
}

#[test]
fn unsupported_settings_are_refused() {
    let fails =
        |builder: TrainerBuilder<_>| message(&builder.build().unwrap().fit(&mut rows(8), None).unwrap_err());
    let refused = |text: &str, expected: &str| assert!(text.contains(expected), "{text}");
    refused(
        &fails(model::builder().hook(MixUp::new(1.0))),
        "the targets are class indices, which must be converted to probabilities: set the number of classes, such as `.classes(10)`",
    );
    refused(
        &fails(model::builder().hook(MixUp::new(1.0).classes(2))),
        "Class values must be smaller than num_classes",
    );
    refused(
        &fails(model::builder().hook(CutMix::new(1.0).classes(3))),
        "the inputs have shape [4, 4]: expected images `[n, …, height, width]`",
    );
    refused(
        &fails(
            model::builder().hook(MixUp::new(1.0).samples(|batch: &mut Pair| (&mut batch.x, &mut batch.y))),
        ),
        "the task's batch is a `(tch::wrappers::tensor::Tensor, tch::wrappers::tensor::Tensor)`, not a `it::methods::Pair`: use `(tch::wrappers::tensor::Tensor, tch::wrappers::tensor::Tensor)`",
    );
    refused(
        &fails(model::builder().accumulate(2).hook(Sam::new(0.1))),
        "`Sam` computes a batch twice, so the gradients of earlier batches of an accumulation window would be lost",
    );
    let parts = Trainer::builder(model::task()).discover(Discover::None).hook(Sam::new(0.1));
    let parts = parts.optimizer_of("fc1", Sgd::new(0.1)).optimizer_of("fc2", Sgd::new(0.1));
    let error = message(&parts.build().unwrap().fit(&mut rows(8), None).unwrap_err());
    refused(&error, "`Sam` supports only one optimizer, but the trainer has several");

    let vs = nn::VarStore::new(device());
    let fc = nn::linear(vs.root() / "fc", 36, 3, Default::default());
    let net = nn::func(move |images| images.flatten(1, -1).apply(&fc));
    let loss: ImagesLoss = |logits, labels| logits.cross_entropy_for_logits(labels);
    let mut trainer = Trainer::builder(TwoLosses(Supervised::new(vs, net, loss)))
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Sam::new(0.1))
        .build()
        .unwrap();
    let error = message(&trainer.fit(&mut one_channel(6), None).unwrap_err());
    refused(
        &error,
        "the gradients cannot be computed again, because the task's `train_step` has several losses or optimizers",
    );
}

/// Takes an optimizer step only in every second batch, and keeps the gradients of the others.
struct EachSecond;

#[hook]
impl EachSecond {
    fn step(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if cx.counters().batch_idx % 2 == 1 { next.run(cx) } else { Ok(next.skip()) }
    }
}

#[test]
fn sam_refuses_gradients_that_another_hook_has_kept() {
    let mut trainer = model::builder().hook(EachSecond).hook(Sam::new(0.1)).build().unwrap();
    let error = message(&trainer.fit(&mut rows(16), None).unwrap_err());
    assert!(
        error
            .contains("the gradients cannot be computed again, because they are a mean over several batches"),
        "{error}"
    );
}

#[test]
fn lookahead_with_one_step_matches_a_smaller_learning_rate() {
    let mut with = model::builder().epochs(3).hook(Lookahead::new(1, 0.5)).build().unwrap();
    with.fit(&mut rows(16), None).unwrap();
    let mut plain = model::builder().optimizer(Sgd::new(0.05)).epochs(3).build().unwrap();
    plain.fit(&mut rows(16), None).unwrap();
    assert!(distance(&flat_parameters(&with), &flat_parameters(&plain)) < 1e-6);
}

#[test]
fn lookahead_moves_slow_weights_after_every_k_steps() {
    fn flat<P>(cx: &Cx<P>) -> Tensor {
        Tensor::cat(&cx.vars().parameters().map(|var| var.tensor.detach().view([-1])).collect::<Vec<_>>(), 0)
            .copy()
    }
    let fast = Arc::new(Mutex::new(Vec::new()));
    let after = Arc::new(Mutex::new(Vec::new()));
    let note_fast = fast.clone();
    let note_after = after.clone();
    let mut trainer = model::builder()
        .epochs(2)
        .hook(Lookahead::new(3, 0.25))
        .on::<AfterOptStep>("fast", move |cx| note_fast.lock().unwrap().push(flat(cx)))
        .on::<AfterStep>("after", move |cx| note_after.lock().unwrap().push(flat(cx)))
        .build()
        .unwrap();
    let mut slow = flat_parameters(&trainer).copy();
    trainer.fit(&mut rows(16), None).unwrap();
    let fast = fast.lock().unwrap();
    let after = after.lock().unwrap();
    for (nth, (fast, after)) in fast.iter().zip(after.iter()).enumerate() {
        if nth % 3 == 2 {
            slow = &slow + (fast - &slow) * 0.25;
            assert!(distance(after, &slow) < 1e-6, "step {nth}");
        } else {
            assert_eq!(after, fast, "step {nth}");
        }
    }
}

/// Runs one of the ignored tests below in a separate process, because libtorch has one random
/// number generator for all threads.
fn in_child_process(test: &str) {
    let output = child_process(test).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_variance_of_gradient_noise_decreases() {
    in_child_process("methods::variance_of_noise");
}

#[test]
#[ignore = "run by another test in a child process"]
fn variance_of_noise() {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(device());
    let weight = vs.root().zeros("weight", &[100_000]);
    let task = Supervised::new(
        vs,
        nn::func(move |_| (&weight * 0.0).sum(Kind::Float)),
        |pred: &Tensor, _: &Tensor| pred.shallow_clone(),
    );
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(1.0))
        .discover(Discover::None)
        .hook(GradientNoise::new(0.3).gamma(2.0))
        .build()
        .unwrap();
    let mut before = flat_parameters(&trainer).copy();
    for step in 0..3 {
        trainer.fit(&mut rows(4), None).unwrap();
        let update = flat_parameters(&trainer) - &before;
        before = flat_parameters(&trainer).copy();
        let expected = (0.3 / (1.0 + f64::from(step)).powi(2)).sqrt();
        let deviation = update.std(true).double_value(&[]);
        // Ten standard errors of the deviation of 100,000 samples.
        assert!((deviation / expected - 1.0).abs() < 10.0 / 200_000_f64.sqrt(), "{deviation} and {expected}");
        assert!(update.mean(Kind::Float).abs().double_value(&[]) < 10.0 * expected / 100_000_f64.sqrt());
    }
}

#[test]
fn runs_with_methods_resume_bit_for_bit() {
    in_child_process("methods::child_process_that_resumes");
}

#[test]
#[ignore = "run by another test in a child process"]
fn child_process_that_resumes() {
    let folder = scratch("methods");
    for method in 0..7 {
        let run = |cancel_in: Option<u64>, seed: i64| {
            tch::manual_seed(3); // for the initial weights
            let builder = images(AdamW::new(0.01)).epochs(3).resume(Resume::Auto);
            let builder = builder.hook(Checkpoint::new(&folder).every(Every::Steps(1)));
            let builder = match method {
                0 => builder.hook(MixUp::new(0.4).classes(3)),
                1 => builder.hook(CutMix::new(1.0).classes(3)),
                2 => builder.hook(LabelSmoothing::new(0.1).classes(3)),
                3 => builder.hook(Sam::new(0.05)).hook(MixUp::new(0.4).classes(3)),
                4 => builder.hook(GradientNoise::new(0.1)),
                5 => builder.hook(Lookahead::new(3, 0.5)),
                _ => builder
                    .hook(Lookahead::new(2, 0.5))
                    .hook(GradientNoise::new(0.1))
                    .hook(CutMix::new(1.0).classes(3))
                    .hook(MixUp::new(0.2))
                    .hook(Sam::new(0.05)),
            };
            tch::manual_seed(seed);
            let mut trainer = cancelled_at(cancel_in, builder).build().unwrap();
            assert_eq!(trainer.fit(&mut one_channel(24).shuffle(1), None).is_err(), cancel_in.is_some());
            exact_state(&trainer)
        };
        std::fs::remove_dir_all(&folder).unwrap();
        let whole = run(None, 5);
        for batch in [1, 4, 6, 11] {
            std::fs::remove_dir_all(&folder).unwrap();
            run(Some(batch), 5);
            // A resumed run uses the random state of the checkpoint.
            assert_eq!(run(None, 6), whole, "method {method}, cancelled in batch {batch}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Trains with MixUp on the data of `interop::methods`, which runs this in a child process. Writes
/// the final weights to `mix_up.safetensors`.
#[test]
#[ignore = "run by `interop::methods` in a child process"]
fn mix_up_for_pytorch() {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let mut trainer = crate::interop::methods::trainer(&folder, Sgd::new(0.1), |builder| {
        builder.hook(MixUp::new(0.4).classes(4))
    });
    let mut data = crate::interop::methods::batches(&folder);
    tch::manual_seed(5);
    trainer.fit(&mut data, None).unwrap();
    let weights: Vec<_> =
        trainer.vars().parameters().map(|var| (var.name.clone(), var.tensor.detach())).collect();
    Tensor::write_safetensors(&weights, folder.join("mix_up.safetensors")).unwrap();
}
