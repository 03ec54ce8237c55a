//! Batch normalization over one value per channel is refused before it damages the model, and
//! values that are not finite are not written without a word.

use std::fs;
use std::sync::{Arc, Mutex};

use trainer::checkpoint::LoadWeights;
use trainer::data::from_fn;
use trainer::hooks::{ActivationCheckpointing, Amp, Checkpoint, Ema, NanGuard, Sam, Swa};
use trainer::prelude::*;
use trainer::{Summary, TrainerBuilder};

use crate::model::message;
use crate::support::{device, own_warnings, scratch};

type Loss = fn(&Tensor, &Tensor) -> Tensor;
type Net = Supervised<nn::SequentialT, Loss>;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_for_logits(labels)
}

/// `fc1`, the batch normalization `bn1`, and `fc2`.
fn task() -> Net {
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let net = nn::seq_t()
        .add(nn::linear(&root / "fc1", 4, 6, Default::default()).named("fc1"))
        .add(nn::batch_norm1d(&root / "bn1", 6, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&root / "fc2", 6, 2, Default::default()));
    Supervised::new(vs, net, loss)
}

/// A convolution whose maps have the size 1 × 1 for inputs `[rows, 4]`.
fn conv_task() -> Net {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let net = nn::seq_t()
        .add_fn(|xs| xs.view([-1, 1, 2, 2]))
        .add(nn::conv2d(&root / "conv", 1, 6, 2, Default::default()))
        .add(nn::batch_norm2d(&root / "bn1", 6, Default::default()))
        .add_fn(|xs| xs.flatten(1, -1))
        .add(nn::linear(&root / "fc2", 6, 2, Default::default()));
    Supervised::new(vs, net, loss)
}

fn builder(task: Net) -> TrainerBuilder<Net> {
    Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).epochs(2).seed(3)
}

fn data(count: i64) -> (Tensor, Tensor) {
    let inputs = (Tensor::arange(count * 4, FLOAT) * 0.37).sin().view([count, 4]);
    let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
    (inputs, labels)
}

fn rows(count: i64) -> InMemory<(Tensor, Tensor)> {
    InMemory::new(data(count)).unwrap()
}

fn statistics(trainer: &Trainer<Net>) -> Vec<f64> {
    let norms = ["bn1.running_mean", "bn1.running_var"];
    norms.map(|name| trainer.vars().get(name).unwrap().sum(Kind::Double).double_value(&[])).to_vec()
}

#[test]
fn a_batch_with_one_value_per_channel_is_refused_before_it_changes_the_model() {
    type Build = fn() -> (TrainerBuilder<Net>, Box<dyn Loader<(Tensor, Tensor)>>, [u64; 2]);
    // Each with the epoch and the batch that is refused.
    let cases: [(&str, Build); 10] = [
        ("last batch", || (builder(task()), Box::new(rows(7).batch_size(3)), [0, 2])),
        ("batches of one row", || (builder(task()), Box::new(rows(4).batch_size(1)), [0, 0])),
        ("one row", || (builder(task()), Box::new(rows(1).batch_size(8)), [0, 0])),
        ("maps of 1 × 1", || (builder(conv_task()), Box::new(rows(5).batch_size(2)), [0, 2])),
        ("micro-batches", || (builder(task()).accumulate(4), Box::new(rows(9).batch_size(2)), [0, 4])),
        ("amp", || (builder(task()).hook(Amp::bf16()), Box::new(rows(7).batch_size(3)), [0, 2])),
        ("sam", || (builder(task()).hook(Sam::new(0.05)), Box::new(rows(7).batch_size(3)), [0, 2])),
        ("checkpointing", || {
            let hook = ActivationCheckpointing::new("fc1");
            (builder(task()).hook(hook), Box::new(rows(7).batch_size(3)), [0, 2])
        }),
        ("stream", || {
            let batches = |_| [3, 1].map(data).into_iter();
            (builder(task()), Box::new(from_fn(batches).deterministic(true)), [0, 1])
        }),
        ("averages", || {
            let hook = Ema::new(0.5).buffers(true);
            (builder(task()).hook(hook), Box::new(rows(7).batch_size(3)), [0, 2])
        }),
    ];
    for (case, build) in cases {
        let (builder, mut train, [epoch, batch]) = build();
        let before = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&before);
        let mut trainer = builder
            .on::<BeforePred>("note", move |cx| {
                let mean = cx.vars().get("bn1.running_mean")?.sum(Kind::Double).double_value(&[]);
                let var = cx.vars().get("bn1.running_var")?.sum(Kind::Double).double_value(&[]);
                *note.lock().unwrap() = vec![mean, var];
                Ok::<_, Error>(())
            })
            .build()
            .unwrap();
        let error = message(&trainer.fit(&mut *train, None).unwrap_err());
        assert!(
            error.contains("the batch normalization `bn1` has one value per channel in training mode, because its input has the shape [1, 6"),
            "{case}: {error}"
        );
        assert!(error.contains(".drop_last(true)"), "{case}: {error}");
        assert!(error.contains(&format!("epoch {epoch}")), "{case}: {error}");
        assert_eq!(trainer.counters().batch_idx, batch, "{case}");
        assert_eq!(statistics(&trainer), *before.lock().unwrap(), "{case}");
        assert!(statistics(&trainer).iter().all(|sum| sum.is_finite()), "{case}");
        for (_, average) in trainer.hooks::<Ema>().flat_map(Ema::average) {
            assert!(average.isfinite().all().int64_value(&[]) == 1, "{case}");
        }
    }
}

#[test]
fn following_the_advice_trains() {
    let mut trainer = builder(task()).build().unwrap();
    let summary =
        trainer.fit(&mut rows(7).batch_size(3).drop_last(true), Some(&mut rows(7).batch_size(3))).unwrap();
    assert_eq!(own_warnings(&summary), [""; 0]);
    assert!(summary.metrics.get("valid/loss").unwrap().is_finite());
    // Evaluation has no batch statistics, so a batch of one row is fine.
    trainer.predict(&mut rows(1)).unwrap();
}

#[test]
fn the_update_of_batch_norm_refuses_a_batch_of_one_row() {
    let mut trainer =
        builder(task()).hook(Swa::from_epoch(0)).update_batch_norm(rows(7).batch_size(3)).build().unwrap();
    let error = message(&trainer.fit(&mut rows(6).batch_size(3), None).unwrap_err());
    assert!(error.contains("BatchNormUpdate"), "{error}");
    assert!(error.contains("the batch normalization `bn1` has one value per channel"), "{error}");
    assert!(statistics(&trainer).iter().all(|sum| sum.is_finite()));
}

#[test]
fn a_hook_that_calls_the_model_in_training_mode_gets_the_error() {
    let direct = |row: Tensor| {
        builder(task()).on::<AfterEpoch>("call", move |cx| {
            let output = cx.eval(|task: &mut Net| Ok(row.apply_t(task.net(), true)))?;
            cx.log("mean", output.mean(Kind::Float));
            Ok::<_, Error>(())
        })
    };
    let mut trainer = direct(data(1).0).build().unwrap();
    let error = message(&trainer.fit(&mut rows(6).batch_size(3), None).unwrap_err());
    assert!(error.contains("the batch normalization `bn1` has one value per channel"), "{error}");
    direct(data(2).0).build().unwrap().fit(&mut rows(6).batch_size(3), None).unwrap();
}

/// Outside of a trainer, the operator itself fails, as PyTorch's function does.
#[test]
fn outside_of_a_trainer_libtorch_returns_an_error() {
    let zeros = |shape: &[i64]| Tensor::zeros(shape, FLOAT);
    let norm = |shape: &[i64], training| {
        let statistics = [zeros(&[3]), Tensor::ones([3], FLOAT)];
        let input = zeros(shape);
        let result = Tensor::f_batch_norm(
            &input,
            None::<&Tensor>,
            None::<&Tensor>,
            Some(&statistics[0]),
            Some(&statistics[1]),
            training,
            0.1,
            1e-5,
            true,
        );
        assert!(statistics[1].isfinite().all().int64_value(&[]) == 1, "{shape:?}");
        result.map_err(|error| error.to_string())
    };
    for shape in [&[1, 3][..], &[1, 3, 1], &[1, 3, 1, 1], &[1, 3, 1, 1, 1]] {
        let error = norm(shape, true).unwrap_err();
        assert!(error.contains("needs more than one value per channel"), "{error}");
        assert!(norm(shape, false).is_ok(), "{shape:?}");
    }
    for shape in [&[2, 3][..], &[1, 3, 2], &[1, 3, 1, 2], &[0, 3]] {
        assert!(norm(shape, true).is_ok(), "{shape:?}");
    }
    let normalized = Tensor::f_instance_norm(
        &zeros(&[1, 3, 1]),
        None::<&Tensor>,
        None::<&Tensor>,
        None::<&Tensor>,
        None::<&Tensor>,
        true,
        0.1,
        1e-5,
        true,
    );
    assert!(normalized.unwrap_err().to_string().contains("needs more than one value per channel"));
}

/// Sets an element of a variable at the end of each epoch.
fn spoiled(builder: TrainerBuilder<Net>, name: &'static str, value: f64) -> TrainerBuilder<Net> {
    builder.on::<AfterTrainEpoch>("spoil", move |cx| {
        let _no_grad = tch::no_grad_guard();
        let _ = cx.vars().get(name)?.view([-1]).get(0).fill_(value);
        Ok::<_, Error>(())
    })
}

fn fitted(builder: TrainerBuilder<Net>) -> (Trainer<Net>, Summary) {
    let mut trainer = builder.build().unwrap();
    let summary = trainer.fit(&mut rows(6).batch_size(3), Some(&mut rows(6).batch_size(3))).unwrap();
    (trainer, summary)
}

#[test]
fn values_that_are_not_finite_are_not_written_without_a_word() {
    let folder = scratch("batch-statistics-words");
    fs::create_dir_all(&folder).unwrap();
    for (nth, name, value) in [
        (0, "bn1.running_var", f64::NAN),
        (1, "bn1.running_mean", f64::INFINITY),
        (2, "fc2.weight", f64::NEG_INFINITY),
        (3, "fc2.bias", f64::NAN),
    ] {
        // A checkpoint, whose averages have the value too.
        let hook = Checkpoint::new(folder.join(nth.to_string()));
        let ema = Ema::new(0.5).buffers(true);
        let (trainer, summary) = fitted(spoiled(builder(task()).epochs(1).hook(hook).hook(ema), name, value));
        let about: Vec<_> =
            summary.warnings.iter().filter(|text| text.contains("a checkpoint has NaN")).collect();
        assert_eq!(about.len(), 1, "{name}: {:?}", summary.warnings);
        assert!(about[0].contains(&format!("in `{name}`")), "{about:?}");

        // A file of weights: the warning is in the next summary.
        let (mut plain, _) = fitted(spoiled(builder(task()).epochs(1), name, value));
        let path = folder.join(format!("{nth}.safetensors"));
        plain.save_weights(&path).unwrap();
        let warnings = plain.validate(&mut rows(6).batch_size(3)).unwrap().warnings;
        let expected = format!("{} has NaN or infinite values in `{name}`", path.display());
        assert!(warnings.iter().any(|text| text.starts_with(&expected)), "{warnings:?}");
        drop(trainer);
    }
}

#[test]
fn a_mask_with_infinite_values_leads_to_no_warning() {
    let folder = scratch("batch-statistics-mask");
    let masked = || {
        let task = task();
        let mut mask = (task.vars().root() / "mask").zeros_no_train("values", &[4]);
        let _ = mask.get(0).fill_(f64::NEG_INFINITY);
        mask = mask.shallow_clone();
        drop(mask);
        builder(task)
    };
    let hook = Checkpoint::new(folder.join("checkpoints")).keep_best(1, "valid/loss", Goal::Minimize);
    let guard = NanGuard::fail().gradients(true).buffers(true).validation(true);
    let (mut trainer, summary) = fitted(masked().hook(hook).hook(guard));
    assert_eq!(own_warnings(&summary), [""; 0]);
    assert!(trainer.hook::<Checkpoint>().unwrap().best().is_some());
    let path = folder.join("weights.safetensors");
    trainer.save_weights(&path).unwrap();
    trainer.load_weights(&path, &LoadWeights::new()).unwrap();
    trainer.save_weights(&path).unwrap();
    assert_eq!(own_warnings(&trainer.validate(&mut rows(6)).unwrap()), [""; 0]);
}

#[test]
fn no_checkpoint_with_values_that_are_not_finite_is_the_best() {
    let folder = scratch("batch-statistics-best");
    for (metric, spoils) in [("train/loss", true), ("train/loss", false)] {
        let hook = Checkpoint::new(folder.join(spoils.to_string())).keep_best(1, metric, Goal::Minimize);
        let builder = builder(task()).hook(hook);
        let builder = if spoils { spoiled(builder, "bn1.running_var", f64::NAN) } else { builder };
        let (trainer, summary) = fitted(builder);
        assert_eq!(trainer.hook::<Checkpoint>().unwrap().best().is_some(), !spoils);
        let warned = summary.warnings.iter().any(|text| text.contains("kept as one of the best"));
        assert_eq!(warned, spoils, "{:?}", summary.warnings);
    }
}

#[test]
fn nan_guard_checks_buffers_and_validation() {
    let train = || rows(6).batch_size(3);
    let spoil = |guard: NanGuard| {
        let builder = builder(task()).hook(guard).on::<AfterStep>("spoil", |cx| {
            let _no_grad = tch::no_grad_guard();
            let is_due = cx.phase() == Phase::Train && cx.counters().batches_seen == 1;
            if is_due {
                let _ = cx.vars().get("bn1.running_var")?.fill_(f64::NAN);
            }
            Ok::<_, Error>(())
        });
        let mut trainer = builder.build().unwrap();
        let result = trainer.fit(&mut train(), Some(&mut train()));
        (trainer, result)
    };
    let (_, result) = spoil(NanGuard::fail().buffers(true));
    let error = message(&result.unwrap_err());
    assert!(
        error.contains("the buffers of `bn1.running_var` are NaN or infinite in batch 1 of epoch 0"),
        "{error}"
    );
    let (trainer, result) = spoil(NanGuard::stop().buffers(true));
    assert_eq!(trainer.counters().optimizer_steps, 1);
    assert!(result.unwrap().stopped.unwrap().contains("bn1.running_var"));
    let (_, result) = spoil(NanGuard::fail().validation(true));
    let error = message(&result.unwrap_err());
    assert!(error.contains("`valid/loss` is NaN in the validation of epoch 0"), "{error}");
    let (_, result) = spoil(NanGuard::fail());
    result.unwrap();

    for guard in [NanGuard::skip_batch().buffers(true), NanGuard::skip_batch().validation(true)] {
        let error = message(&builder(task()).hook(guard).build().unwrap_err());
        assert!(error.contains("does not repair"), "{error}");
    }
}

#[test]
fn a_skipped_batch_leaves_the_buffers_as_they_were() {
    for guard in [NanGuard::skip_batch, NanGuard::stop] {
        let batches = |_| {
            let (inputs, labels) = data(9);
            let bad = &inputs * f64::NAN;
            let batch = |inputs: &Tensor, at| (inputs.narrow(0, at, 3), labels.narrow(0, at, 3));
            [batch(&inputs, 0), batch(&bad, 3), batch(&inputs, 6)].into_iter()
        };
        let mut trainer = builder(task()).epochs(1).hook(guard()).build().unwrap();
        let mut train = from_fn(batches).deterministic(true).with_len(3);
        let summary = trainer.fit(&mut train, Some(&mut rows(6).batch_size(3))).unwrap();
        assert!(statistics(&trainer).iter().all(|sum| sum.is_finite()));
        let loss = trainer.validate(&mut rows(6).batch_size(3)).unwrap().metrics.get("valid/loss").unwrap();
        assert!(loss.is_finite());
        // The weights are finite, so the warning does not advise what is on already.
        let about: Vec<_> =
            summary.warnings.iter().filter(|text| text.contains("mean training loss")).collect();
        assert!(
            about.iter().all(|text| text.contains("the weights are finite") && !text.contains("NanGuard")),
            "{about:?}"
        );
    }
}
