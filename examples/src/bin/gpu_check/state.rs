//! The state of a run: random numbers, checkpoints, an exact resume.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use trainer::hooks::{Amp, Checkpoint, Ema, Lookahead, Swa};
use trainer::prelude::*;

use crate::fixtures::{conv, difference, images, mlp, rows, scratch, weights};
use crate::{Check, Found, ensure};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("a seed", seed),
    ("deterministic, run twice", deterministic),
    ("exact resume", |device| resume(device, None)),
    ("exact resume, Ema and Amp", |device| resume(device, Some(Average::Ema))),
    ("exact resume, Swa and Lookahead", |device| resume(device, Some(Average::Swa))),
    ("a nested fit", nested),
    ("checkpoints while training", checkpoints),
];

fn seed(device: Device) -> Result<Found> {
    let drawn = |seed| {
        tch::manual_seed(seed);
        Tensor::randn([64], (Kind::Float, device))
    };
    ensure(drawn(1) == drawn(1) && drawn(1) != drawn(2), || "`manual_seed` does not seed the device".into())?;
    let fitted = |seed| {
        let mut trainer = mlp(0.5).optimizer(Sgd::new(0.1)).device(device).seed(seed).build()?;
        trainer.fit(&mut rows(64)?, None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    let [one, again, other] = [fitted(1)?, fitted(1)?, fitted(2)?];
    ensure(one == again, || format!("two runs differ by {:.1e}", difference(&one, &again)))?;
    ensure(one != other, || "dropout ignores the seed".into())?;
    Ok("the same dropout for the same seed".to_owned().into())
}

fn deterministic(device: Device) -> Result<Found> {
    let fitted = || {
        let builder = conv().optimizer(AdamW::new(1e-3)).device(device).deterministic(true);
        let mut trainer = builder.epochs(2).build()?;
        trainer.fit(&mut images(64)?, None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    let (one, other) = (fitted()?, fitted()?);
    ensure(one == other, || format!("two runs differ by {:.1e}", difference(&one, &other)))?;
    let setting = std::env::var("CUBLAS_WORKSPACE_CONFIG").unwrap_or_else(|_| "not set".to_owned());
    Ok(format!("the same bits; CUBLAS_WORKSPACE_CONFIG is {setting}").into())
}

/// A hook that keeps an average of the weights.
#[derive(Clone, Copy)]
enum Average {
    Ema,
    Swa,
}

/// Compares an uninterrupted run with a run that stops after two of four epochs and is resumed.
fn resume(device: Device, average: Option<Average>) -> Result<Found> {
    let fitted = |folder: &Path, epochs: u64, resumes: bool| {
        let builder = mlp(0.3).device(device).seed(5).deterministic(true).optimizer(AdamW::new(1e-2));
        let mut builder = builder.hook(Checkpoint::new(folder)).epochs(epochs);
        builder = match average {
            None => builder,
            Some(Average::Ema) => builder.hook(Ema::new(0.9)).hook(Amp::fp16()),
            Some(Average::Swa) => builder.hook(Swa::from_epoch(1)).hook(Lookahead::new(3, 0.5)),
        };
        if resumes {
            builder = builder.resume(Resume::Auto);
        }
        let first = Arc::new(Mutex::new(None));
        let note = Arc::clone(&first);
        let builder = builder.observe::<BeforeStep>("first", move |cx| {
            note.lock().expect("not poisoned").get_or_insert(cx.counters().batches_seen);
        });
        let mut trainer = builder.build()?;
        trainer.fit(&mut rows(64)?, None)?;
        let mut state = weights(&trainer);
        let averages: Vec<_> = match average {
            None => Vec::new(),
            Some(Average::Ema) => {
                trainer.hook::<Ema>()?.average().map(|(_, tensor)| tensor.detach()).collect()
            }
            Some(Average::Swa) => {
                trainer.hook::<Swa>()?.average().map(|(_, tensor)| tensor.detach()).collect()
            }
        };
        ensure(averages.iter().all(|tensor| tensor.device() == device), || {
            "an average is not on the device of the task".into()
        })?;
        state.extend(averages.iter().map(|tensor| tensor.to_device(Device::Cpu)));
        let first = *first.lock().expect("not poisoned");
        Ok::<_, Error>((state, first))
    };
    let (whole, first) = fitted(&scratch("whole"), 4, false)?;
    ensure(first == Some(0), || format!("the whole run begins after {first:?} batches"))?;
    let folder = scratch("resumed");
    fitted(&folder, 2, false)?;
    let (resumed, first) = fitted(&folder, 4, true)?;
    ensure(first == Some(8), || format!("the resumed run begins after {first:?} batches, expected 8"))?;
    ensure(whole == resumed, || format!("they differ by {:.1e}", difference(&whole, &resumed)))?;
    Ok(format!("the same bits in {} tensors, from batch 8", whole.len()).into())
}

/// Checks that a fit inside a hook does not change the random numbers of the run.
fn nested(device: Device) -> Result<Found> {
    let fitted = |nests: bool| {
        // The inner trainer is built here, because creating a network also draws random numbers.
        let mut inner = mlp(0.5).optimizer(Sgd::new(0.1)).device(device).seed(4).build()?;
        let builder = mlp(0.5).optimizer(Sgd::new(0.1)).device(device).seed(3);
        let builder = builder.on::<AfterStep>("nested", move |_| {
            if !nests {
                return Ok(());
            }
            let data = Tensor::ones([16, 16], (Kind::Float, Device::Cpu));
            let labels = Tensor::zeros([16], (Kind::Int64, Device::Cpu));
            inner.fit(&mut InMemory::new((data, labels))?.batch_size(8), None).map(drop)
        });
        let mut trainer = builder.build()?;
        trainer.fit(&mut rows(64)?, None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    let (alone, nesting) = (fitted(false)?, fitted(true)?);
    ensure(alone == nesting, || format!("they differ by {:.1e}", difference(&alone, &nesting)))?;
    Ok("the same dropout as without it".to_owned().into())
}

/// Compares the weights in the checkpoint of each step, which is written in the background, with
/// the weights at that step.
fn checkpoints(device: Device) -> Result<Found> {
    let folder = scratch("each-step");
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let note = Arc::clone(&seen);
    let checkpoint = Checkpoint::new(&folder).every(Every::Steps(1)).keep_last(100).in_background(true);
    let builder = mlp(0.0).optimizer(AdamW::new(1e-2)).device(device).hook(checkpoint);
    let builder = builder.observe::<AfterStep>("note", move |cx| {
        let weight = cx.vars().get("fc1.weight").map(|weight| weight.to_device(Device::Cpu).copy());
        note.lock().expect("not poisoned").insert(cx.counters().optimizer_steps, weight);
    });
    let mut trainer = builder.build()?;
    trainer.fit(&mut rows(256)?, None)?;
    let seen = seen.lock().expect("not poisoned");
    let mut compared = 0;
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(step) = name.rsplit('-').next().and_then(|step| step.parse::<u64>().ok()) else { continue };
        let stored = Tensor::read_safetensors(path.join("model.safetensors"))?;
        let stored = stored.iter().find(|(name, _)| name == "fc1.weight").map(|(_, tensor)| tensor);
        let stored = stored.ok_or_else(|| Error::msg("the file has no `fc1.weight`"))?;
        let Some(Ok(expected)) = seen.get(&step) else { continue };
        ensure(*stored == *expected, || format!("{name} has the weights of another step"))?;
        compared += 1;
    }
    ensure(compared >= 8, || format!("only {compared} checkpoints were found"))?;
    Ok(format!("{compared} of 16 steps").into())
}
