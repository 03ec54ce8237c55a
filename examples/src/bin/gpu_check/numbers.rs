//! Checks that numbers equal those of the CPU: optimizers, gradients, averages, metrics, records.

use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::hooks::{ActivationCheckpointing, Ema};
use trainer::metrics::{Accuracy, Auroc, Metric};
use trainer::modules::{named, named_t};
use trainer::optim::{Adagrad, Adam, Lion, Muon, RmsProp};
use trainer::prelude::*;

use crate::fixtures::{Mlp, close, conv, difference, images, mlp, rows, weights};
use crate::{Check, Found, ensure};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("Sgd, 24 steps", |device| {
        compared(device, 1e-4, |builder| builder.optimizer(Sgd::new(0.1).momentum(0.9).nesterov(true)))
    }),
    ("Adam, 24 steps", |device| {
        compared(device, 1e-3, |builder| builder.optimizer(Adam::new(1e-3).amsgrad(true)))
    }),
    ("AdamW, 24 steps", |device| compared(device, 1e-3, |builder| builder.optimizer(AdamW::new(1e-3)))),
    ("Adagrad, 24 steps", |device| {
        compared(device, 1e-3, |builder| builder.optimizer(Adagrad::new(1e-2).lr_decay(0.1)))
    }),
    ("RmsProp, 24 steps", |device| {
        compared(device, 1e-3, |builder| builder.optimizer(RmsProp::new(1e-3).centered(true).momentum(0.9)))
    }),
    ("Lion, 24 steps", |device| compared(device, 1e-2, |builder| builder.optimizer(Lion::new(1e-4)))),
    ("Muon, 24 steps", |device| {
        compared(device, 1e-2, |builder| {
            builder.optimizer(Muon::new(1e-2).full_precision(true).group("*.bias", AdamW::new(1e-3)))
        })
    }),
    ("clip_grad_norm", |device| {
        compared(device, 1e-4, |builder| builder.optimizer(Sgd::new(0.1)).clip_grad_norm(0.1))
    }),
    ("clip_grad_value", |device| {
        compared(device, 1e-4, |builder| builder.optimizer(Sgd::new(0.1)).clip_grad_value(0.01))
    }),
    ("accumulation", |device| {
        compared(device, 1e-4, |builder| builder.optimizer(Sgd::new(0.1)).accumulate(3))
    }),
    ("averages, and their device", averages),
    ("strides of gradients", strides),
    ("channels last", channels_last),
    ("recomputation with dropout", recomputation),
    ("gradients at modules", module_gradients),
    ("a panic in `on_grad`", panic_in_on_grad),
    ("tied weights", tied_weights),
    ("metrics", metrics),
    ("values in records", records),
    ("two devices in one record", two_devices),
    ("`InMemory` on the device", data_on_device),
    ("`to_device` of a loader", uploaded),
];

/// Compares the weights after three epochs with those of the CPU.
fn compared(
    device: Device,
    tolerance: f64,
    with: fn(TrainerBuilder<Mlp>) -> TrainerBuilder<Mlp>,
) -> Result<Found> {
    let fitted = |device| {
        let mut trainer = with(mlp(0.0)).device(device).epochs(3).build()?;
        trainer.fit(&mut rows(128)?, None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    let start = weights(&with(mlp(0.0)).build()?);
    let (cpu, own) = (fitted(Device::Cpu)?, fitted(device)?);
    ensure(difference(&start, &cpu) > 10.0 * tolerance.min(1e-4), || "nothing was learned".into())?;
    close(&cpu, &own, tolerance)
}

fn averages(device: Device) -> Result<Found> {
    let averaged = |device| {
        let builder = mlp(0.0).optimizer(Sgd::new(0.1)).hook(Ema::new(0.5)).device(device);
        let mut trainer = builder.epochs(2).build()?;
        trainer.fit(&mut rows(128)?, None)?;
        let average = trainer.hook::<Ema>()?.average();
        let average: Vec<_> = average.map(|(_, tensor)| tensor.detach()).collect();
        ensure(!average.is_empty() && average.iter().all(|tensor| tensor.device() == device), || {
            "the averages are not on the device of the task".into()
        })?;
        ensure(difference(&weights(&trainer), &host(&average)) > 1e-6, || {
            "the averages are the weights".into()
        })?;
        Ok::<_, Error>(host(&average))
    };
    close(&averaged(Device::Cpu)?, &averaged(device)?, 1e-4)
}

fn host(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|tensor| tensor.to_device(Device::Cpu)).collect()
}

/// Counts the gradients that each step copies because their strides differ from those of the
/// weight.
fn strides(device: Device) -> Result<Found> {
    let count = |channels_last| {
        let copied = Arc::new(Mutex::new(0));
        let note = Arc::clone(&copied);
        let builder = conv().optimizer(AdamW::new(1e-3)).channels_last(channels_last).device(device);
        let builder = builder.observe::<BeforeOptStep>("strides", move |cx| {
            let vars = cx.vars();
            let differ = vars.parameters().filter(|var| {
                let grad = var.tensor.grad();
                grad.defined() && grad.stride() != var.tensor.stride()
            });
            *note.lock().expect("not poisoned") += differ.count();
        });
        builder.build()?.fit(&mut images(32)?, None)?;
        let copied = *copied.lock().expect("not poisoned");
        Ok::<usize, Error>(copied)
    };
    let [usual, last] = [count(false)?, count(true)?];
    Ok(format!("copied in 4 steps: {usual}, with channels last {last}").into())
}

fn channels_last(device: Device) -> Result<Found> {
    let fitted = |device, channels_last| {
        let builder = conv().optimizer(Sgd::new(0.05)).channels_last(channels_last).device(device);
        let mut trainer = builder.epochs(2).build()?;
        trainer.fit(&mut images(64)?, None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    close(&fitted(Device::Cpu, false)?, &fitted(device, true)?, 1e-2)
}

fn recomputation(device: Device) -> Result<Found> {
    let fitted = |checkpointed: bool| {
        tch::manual_seed(5);
        let vs = nn::VarStore::new(device);
        let root = vs.root();
        let block = named_t(&root / "block", |path| {
            nn::seq_t()
                .add(nn::linear(path / "fc", 16, 64, Default::default()))
                .add_fn_t(|hidden, train| hidden.gelu("none").dropout(0.3, train))
        });
        let net = nn::seq_t().add(block).add(nn::linear(&root / "head", 64, 2, Default::default()));
        let loss = |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels);
        let builder = Trainer::builder(Supervised::new(vs, net, loss)).discover(Discover::None).seed(9);
        let builder = builder.deterministic(true).optimizer(Sgd::new(0.1));
        let mut trainer = match checkpointed {
            true => builder.hook(ActivationCheckpointing::new("block")).build()?,
            false => builder.build()?,
        };
        trainer.fit(&mut rows(64)?, None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    let (plain, recomputed) = (fitted(false)?, fitted(true)?);
    ensure(plain == recomputed, || format!("they differ by {:.1e}", difference(&plain, &recomputed)))?;
    Ok("the same bits".to_owned().into())
}

/// Checks a hook that reads the gradient of a module's output. The hook runs on the libtorch thread
/// that computes this gradient.
fn module_gradients(device: Device) -> Result<Found> {
    let norms = |device| {
        tch::manual_seed(5);
        let vs = nn::VarStore::new(device);
        let layer = |path: &nn::Path<'_>| nn::linear(path, 16, 2, Default::default());
        let net = named(vs.root() / "fc", |path| layer(path));
        let loss = |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&seen);
        let builder = Trainer::builder(Supervised::new(vs, net, loss)).discover(Discover::None);
        let builder = builder.optimizer(Sgd::new(0.1)).observe::<AfterModuleBackward>(
            HookOptions::named("note").of("fc"),
            move |cx| {
                note.lock().expect("not poisoned").push(cx.output_grad().norm().double_value(&[]));
            },
        );
        builder.build()?.fit(&mut rows(64)?, None)?;
        let seen = seen.lock().expect("not poisoned").clone();
        Ok::<Vec<f64>, Error>(seen)
    };
    let (cpu, own) = (norms(Device::Cpu)?, norms(device)?);
    ensure(cpu.len() == 4 && own.len() == 4, || format!("{} calls, expected 4", own.len()))?;
    close(&[Tensor::from_slice(&cpu)], &[Tensor::from_slice(&own)], 1e-5)
}

fn panic_in_on_grad(device: Device) -> Result<Found> {
    let x = Tensor::ones([2], (Kind::Float, device)).set_requires_grad(true);
    let y = &x * 2.0;
    let _handle = y.on_grad(|_| panic!("this panic is expected"))?;
    let error = y.sum(Kind::Float).f_backward().err().map(|error| error.to_string()).unwrap_or_default();
    ensure(error.contains("this panic is expected"), || format!("no error, but `{error}`"))?;
    Ok("an error of the backward pass".to_owned().into())
}

/// Checks that variables that share memory are rejected, or treated as one parameter by the
/// optimizer.
fn tied_weights(device: Device) -> Result<Found> {
    let vs = nn::VarStore::new(device);
    let root = vs.root();
    let one = root.var("one", &[4, 4], nn::Init::Const(1.0));
    let tied = ("tied".to_owned(), one.shallow_clone());
    vs.variables_.lock().expect("not poisoned").named_variables.extend([tied]);
    let loss = |pred: &Tensor, _: &Tensor| pred.square().sum(Kind::Float);
    let net = move |xs: &Tensor| xs.matmul(&one);
    let task = Supervised::new(vs, nn::func(net), loss);
    let built = Trainer::builder(task).discover(Discover::None).optimizer(Sgd::new(0.1)).build();
    match built {
        Ok(trainer) => {
            let count = trainer.optimizer().map_or(0, |optimizer| optimizer.groups()[0].names().count());
            ensure(count == 1, || format!("the optimizer has {count} parameters"))?;
            Ok("one parameter".to_owned().into())
        }
        Err(error) => {
            let text = error.to_string();
            ensure(text.contains("are the same tensor"), || text.clone())?;
            Ok("they are found, and refused".to_owned().into())
        }
    }
}

fn metrics(device: Device) -> Result<Found> {
    tch::manual_seed(11);
    let scores = Tensor::rand([512], (Kind::Float, Device::Cpu));
    let labels = Tensor::rand([512], (Kind::Float, Device::Cpu)).lt_tensor(&scores).to_kind(Kind::Int64);
    let measured = |device: Device| -> Result<Vec<f64>> {
        let (scores, labels) = (scores.to_device(device), labels.to_device(device));
        let mut found = Vec::new();
        let mut accuracy = Accuracy::binary();
        let mut auroc = Auroc::binary();
        let metrics: [&mut dyn Metric; 2] = [&mut accuracy, &mut auroc];
        for metric in metrics {
            for (scores, labels) in scores.split(100, 0).iter().zip(labels.split(100, 0)) {
                metric.update(scores, &labels)?;
            }
            found.push(metric.compute()?.double_value(&[]));
        }
        Ok(found)
    };
    let (cpu, own) = (measured(Device::Cpu)?, measured(device)?);
    close(&[Tensor::from_slice(&cpu)], &[Tensor::from_slice(&own)], 1e-6)
}

/// Logs, in each step, a counter that a slow computation produces. If the record reads its copy too
/// early, the value is wrong.
fn records(device: Device) -> Result<Found> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    let builder = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).record_every(Every::Steps(1));
    let builder = builder
        .observe::<AfterStep>("slow", |cx| {
            let slow = Tensor::ones([1024, 1024], (Kind::Float, cx.device())) / 1024.0;
            let product = (0..8).fold(slow.copy(), |product, _| product.matmul(&slow));
            let batches = cx.counters().batches_seen as f64;
            cx.log("counter", product.select(0, 0).select(0, 0) * (1024.0 * batches));
        })
        .observe::<AfterRecord>("note", move |cx| {
            let scalars: Vec<_> =
                cx.record().scalars().filter(|(name, _)| *name == "train/counter").collect();
            note.lock().expect("not poisoned").extend(scalars.into_iter().map(|(_, value)| value));
        });
    builder.build()?.fit(&mut rows(512)?, None)?;
    let mut seen = seen.lock().expect("not poisoned").clone();
    seen.truncate(32); // without the record of the epoch
    let expected: Vec<f64> = (1..=32).map(f64::from).collect();
    close(&[Tensor::from_slice(&expected)], &[Tensor::from_slice(&seen)], 1e-3)
}

fn two_devices(device: Device) -> Result<Found> {
    let builder = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).observe::<AfterStep>("both", |cx| {
        cx.log("here", Tensor::from(2.0_f32).to_device(cx.device()));
        cx.log("host", Tensor::from(3.0_f32));
    });
    let summary = builder.build()?.fit(&mut rows(64)?, None)?;
    let found = [summary.metrics["train/here"], summary.metrics["train/host"]];
    ensure(found == [2.0, 3.0], || format!("{found:?} instead of [2.0, 3.0]"))?;
    Ok(format!("{found:?}").into())
}

fn data_on_device(device: Device) -> Result<Found> {
    let fitted = |on: Device| {
        tch::manual_seed(7);
        let inputs = Tensor::randn([64, 16], (Kind::Float, Device::Cpu));
        let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
        let data = (inputs.to_device(on), labels.to_device(on));
        let mut trainer = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).build()?;
        trainer.fit(&mut InMemory::new(data)?.batch_size(16).shuffle(3), None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    close(&fitted(Device::Cpu)?, &fitted(device)?, 0.0)
}

fn uploaded(device: Device) -> Result<Found> {
    let mut trainer = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).deterministic(true).build()?;
    trainer.fit(&mut rows(2048)?, None)?;
    let on_device = Arc::new(Mutex::new(true));
    let note = Arc::clone(&on_device);
    let builder = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).deterministic(true);
    let builder = builder.observe::<BeforeTransfer>("device", move |cx| {
        let is_there = cx.batch::<(Tensor, Tensor)>().is_ok_and(|(inputs, _)| inputs.device() == cx.device());
        *note.lock().expect("not poisoned") &= is_there;
    });
    let mut ahead = builder.build()?;
    ahead.fit(&mut rows(2048)?.prefetch(3).to_device(device), None)?;
    ensure(*on_device.lock().expect("not poisoned"), || "a batch was not on the device".into())?;
    close(&weights(&trainer), &weights(&ahead), 0.0)
}
