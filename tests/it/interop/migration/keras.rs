//! The rows of the page about Keras.

use std::sync::{Arc, Mutex};

use trainer::hooks::{Checkpoint, EarlyStopping, HyperparameterSchedule, ReduceOnPlateau};
use trainer::metrics::{Accuracy, Metric};
use trainer::optim::{Adagrad, Adam, RmsProp};
use trainer::prelude::*;
use trainer::schedule::{Cosine, Exponential, MultiStep, StepDecay};

use super::program::*;
use super::{Case, Series};
use crate::support::scratch;

fn entropy(logits: &Tensor, y: &Tensor, weights: Option<Tensor>, reduction: Reduction) -> Tensor {
    logits.cross_entropy_loss(y, weights, reduction, -100, 0.0)
}

fn class_weights() -> Option<Tensor> {
    Some(Tensor::from_slice(&[1.0_f64, 5.0, 2.0]))
}

pub(super) const CASES: &[Case] = &[
    Case::new("epochs=n", || Program::new(sgd(), |b| b.epochs(3)).fit()),
    Case::new("validation_split=0.2", || {
        let mut program = Program::new(sgd(), |b| b);
        program.fit_on(loader(rows(0, 16), 4), Some(loader(rows(16, 4), 4)));
        program.seen()
    }),
    Case::new("class_weight={0: 1.0, 1: 5.0}", || {
        classified(|logits, y| entropy(logits, y, class_weights(), Reduction::Mean), labeled(0, 20))
    })
    .advised(|| {
        let each: LossFn = |logits, y| entropy(logits, y, class_weights(), Reduction::None).mean(None);
        classified(each, labeled(0, 20))
    }),
    Case::new("sample_weight=…", || {
        // The targets are the classes and the weights of the rows.
        let weighted: LossFn = |logits, y| {
            let (classes, weights) = (y.select(1, 0).to_kind(Kind::Int64), y.select(1, 1));
            (entropy(logits, &classes, None, Reduction::None) * weights).mean(None)
        };
        let (x, classes) = labeled(0, 20);
        let weights = Tensor::arange(20, (Kind::Double, Device::Cpu)) / 10.0 + 0.1;
        classified(weighted, (x, Tensor::stack(&[classes.to_kind(Kind::Double), weights], 1)))
    }),
    Case::new("validation_freq=n", || {
        Program::new(sgd(), |b| b.epochs(5).validate_every(Every::Epochs(2))).fit_valid()
    }),
    Case::new("validation_steps=n", || Program::new(sgd(), |b| b.limit_valid_batches(1)).fit_valid()),
    Case::new("initial_epoch=n", || {
        let folder = scratch("migration-initial");
        Program::new(sgd(), |b| b.epochs(3).hook(Checkpoint::new(&folder))).fit();
        let seen = Program::new(sgd(), |b| b.epochs(5).resume(&*folder)).fit();
        with(seen, "steps", vec![10.0])
    }),
    Case::new("global_clipnorm=x", || Program::new(sgd(), |b| b.clip_grad_norm(0.05)).fit()),
    Case::new("clipvalue=x", || Program::new(sgd(), |b| b.clip_grad_value(0.05)).fit()),
    Case::new("clipnorm=x", || Program::new(sgd(), |b| b.clip_grad_norm(0.02)).fit()).advised(|| {
        let clip = |cx: &mut Cx<BeforeOptStep>| {
            for (_, mut grad) in cx.grads() {
                let norm = grad.norm().double_value(&[]);
                drop(grad.g_mul_scalar_((0.02 / norm).min(1.0)));
            }
        };
        Program::new(sgd(), |b| b.on::<BeforeOptStep>("clip", clip)).fit()
    }),
    Case::new("gradient_accumulation_steps=n", || Program::new(sgd(), |b| b.accumulate(2)).fit()).advised(
        || {
            let mut program = Program::new(sgd(), |b| b.accumulate(2));
            program.fit_on(loader(rows(0, 16), 4), None);
            program.seen()
        },
    ),
    Case::new("model.stop_training = True", || {
        let stop = |cx: &mut Cx<AfterStep>| {
            if cx.counters().batch_idx == 3 {
                cx.stop("enough");
            }
        };
        Program::new(sgd(), |b| b.on::<AfterStep>("stop", stop)).fit()
    }),
    Case::new("the returned `History`", || logged(8, "train/loss")),
    Case::new("logs[\"loss\"]", || losses_of_batches(false)).advised(|| losses_of_batches(true)),
    Case::new("set_random_seed(n)", random_numbers),
    Case::new("ModelCheckpoint", || checkpoint_of_the_best(false)).advised(|| checkpoint_of_the_best(true)),
    Case::new("EarlyStopping(monitor=\"val_loss\", patience=n)", || {
        let stopping = EarlyStopping::new("valid/scripted", Goal::Minimize).patience(2);
        Program::new(sgd(), |b| b.epochs(12).hook(stopping)).fit_valid()
    }),
    Case::new("restore_best_weights=True", || best(sgd, false)).advised(|| best(sgd, true)),
    Case::new("start_from_epoch=n", || {
        let stopping = EarlyStopping::new("valid/scripted", Goal::Minimize).patience(2);
        Program::new(sgd(), |b| b.epochs(12).min_epochs(5).hook(stopping)).fit_valid()
    }),
    Case::new("ReduceLROnPlateau", || {
        reduced(ReduceOnPlateau::new("valid/scripted", Goal::Minimize).factor(0.5).patience(2))
    })
    .advised(|| {
        let plateau = ReduceOnPlateau::new("valid/scripted", Goal::Minimize).factor(0.5).patience(1);
        reduced(plateau.threshold_abs(0.1))
    }),
    Case::new("TensorBoard", || {
        let mut program = Program::new(sgd(), |b| b.epochs(3));
        let history = program.fit_on(train_rows(), None).history;
        let steps = history.points("train/loss").map(|(at, _)| at.optimizer_steps as f64).collect();
        with(program.seen(), "axis", steps)
    }),
    Case::new("Adam(weight_decay=x)", || Program::new(Adam::new(0.01).weight_decay(0.3), |b| b).fit())
        .advised(|| keras_adam(1e-7, AdamW::new(0.01).weight_decay(0.3))),
    Case::new("Adam(epsilon=x)", || Program::new(Adam::new(0.01).eps(0.1), |b| b).fit())
        .advised(|| keras_adam(0.1, Adam::new(0.01))),
    Case::new("SGD(momentum=x)", || scheduled(sgd().momentum(0.9), StepDecay::new(3, 0.1))),
    Case::new("RMSprop(rho=x)", || Program::new(RmsProp::new(0.01), |b| b).fit())
        .advised(|| Program::new(RmsProp::new(0.01).alpha(0.9).eps(1e-7), |b| b).fit()),
    Case::new("Adagrad()", || Program::new(Adagrad::new(0.01), |b| b).fit())
        .advised(|| Program::new(Adagrad::new(0.01).initial_accumulator_value(0.1).eps(1e-7), |b| b).fit()),
    Case::new("PiecewiseConstantDecay(boundaries, …)", || rates(0.1, &MultiStep::new([3, 6], 0.5)))
        .advised(|| rates(0.1, &MultiStep::new([4, 7], 0.5))),
    Case::new("CosineDecay(lr, steps, warmup_target=x, warmup_steps=n)", || {
        rates(0.1, &Cosine::to(0.0).over(7).warm_up(3))
    })
    .advised(|| rates(0.1, &Cosine::to(0.0).over(7).warm_up(3).starting_at(0.0))),
    Case::new("ExponentialDecay(lr, n, rate)", || rates(0.1, &Exponential::new(0.5)))
        .advised(|| rates(0.1, &Exponential::new(0.5_f64.powf(1.0 / 2.0)))),
    Case::new("TopKCategoricalAccuracy(k=1)", || {
        let mut accuracy = Accuracy::multiclass(3);
        let pred = Tensor::from_slice(&[0.2, 0.2, 0.2, 0.1, 0.7, 0.1]).view([2, 3]);
        accuracy.update(&pred, &Tensor::from_slice(&[1_i64, 1])).unwrap();
        let value = accuracy.compute().unwrap();
        with(Series::new(), "accuracy", numbers(&value))
    }),
    Case::new("BackupAndRestore(save_freq=n)", || resumed(sgd)),
    Case::new("keras.random.SeedGenerator", draws_continue),
];

fn classified(loss: LossFn, train: Rows2) -> Series {
    let mut program = Program::of(model(no_norm, 3, loss), sgd(), |b| b);
    program.fit_on(loader(train, 4), None);
    program.seen()
}

/// Records the loss of each batch, or the mean of the epoch so far.
fn losses_of_batches(means: bool) -> Series {
    let logged: Arc<Mutex<Vec<f64>>> = Arc::default();
    let note = logged.clone();
    let mut sum = 0.0;
    let seen = Program::new(sgd(), |b| {
        b.on::<AfterStep>("note", move |cx| {
            let batches = cx.counters().batch_idx as f64;
            let loss = cx.step_loss().unwrap().double_value(&[]);
            sum = if batches == 1.0 { loss } else { sum + loss };
            note.lock().unwrap().push(if means { sum / batches } else { loss });
        })
    })
    .fit();
    let logged = logged.lock().unwrap().clone();
    with(seen, "logged", logged)
}

fn checkpoint_of_the_best(keeps_best: bool) -> Series {
    let folder = scratch("migration-model-checkpoint");
    let keep = Checkpoint::new(&folder);
    let keep = if keeps_best { keep.keep_best(1, "valid/scripted", Goal::Minimize) } else { keep };
    let mut program = Program::new(sgd(), |b| b.epochs(7).hook(keep));
    program.fit_on(train_rows(), Some(valid_rows()));
    let hook = program.trainer.hook::<Checkpoint>().unwrap();
    let path = hook.best().map_or_else(|| hook.newest().unwrap(), |(path, _)| path);
    let step: u64 = path.file_name().unwrap().to_str().unwrap()["step-".len()..].parse().unwrap();
    with(program.seen(), "epochs", vec![(step / 5 - 1) as f64])
}

fn reduced(plateau: ReduceOnPlateau) -> Series {
    let seen = Program::new(sgd(), |b| b.epochs(12).hook(plateau)).fit_valid();
    let of_epochs = seen["rates"].iter().step_by(5).copied().collect();
    with(seen, "rate of each epoch", of_epochs)
}

/// Adam with the epsilon of Keras, which is in front of the bias correction.
fn keras_adam(eps: f64, optimizer: impl Optimizer + 'static) -> Series {
    let of_step = move |step: u64| eps / (1.0 - 0.999_f64.powf(step as f64 + 1.0)).sqrt();
    Program::new(optimizer, |b| b.hook(HyperparameterSchedule::values("eps", of_step))).fit()
}
