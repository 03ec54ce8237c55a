//! How often the host waits for the GPU, which should never happen in a steady step.

use trainer::hooks::{CudaMemoryMonitor, Ema, KernelProfiler, NanGuard, Progress};
use trainer::metrics::Accuracy;
use trainer::prelude::*;
use trainer::profile::{ProfileRow, SpanKind};
use trainer::{Phase, TrainerBuilder};

use crate::fixtures::{Mlp, mlp, rows, scratch};
use crate::{Check, Found, ensure};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("waits, bare loop", |device| waits(device, 0, |builder| builder)),
    ("waits, clipping and Ema", |device| {
        waits(device, 0, |builder| builder.clip_grad_norm(1.0).hook(Ema::new(0.9)))
    }),
    ("waits, accuracy", |device| waits(device, 0, |builder| builder.hook(Accuracy::binary()))),
    ("waits, records of every 8th step", |device| {
        waits(device, 2, |builder| {
            builder.record_every(Every::Steps(8)).hook(CudaMemoryMonitor::new().every(8))
        })
    }),
    // As documented, these hooks read a value in each step.
    ("waits, Progress and NanGuard", |device| {
        waits(device, 8, |builder| builder.hook(Progress::new()).hook(NanGuard::fail()))
    }),
    ("a synchronized profile", synchronized),
    ("a trace with kernels", trace),
];

const STEPS: u64 = 64;

/// Counts the waits of a fit, and returns an error if there are more than `per_ten_steps` per ten
/// steps. Waits that occur once per epoch are not counted.
fn waits(
    device: Device,
    per_ten_steps: u64,
    with: fn(TrainerBuilder<Mlp>) -> TrainerBuilder<Mlp>,
) -> Result<Found> {
    if device == Device::Cpu {
        return Ok(Found::Skip("the CPU has nothing to wait for"));
    }
    let builder = mlp(0.0).optimizer(AdamW::new(1e-3)).device(device).profile(true);
    let mut trainer = with(builder).build()?;
    trainer
        .fit(&mut rows(16 * i64::try_from(STEPS).unwrap_or_default())?.prefetch(2).to_device(device), None)?;
    let profile = trainer.profile().ok_or_else(|| Error::msg("there is no profile"))?;
    let rows = profile.rows();
    let in_steps =
        |row: &&&ProfileRow| row.phase == Phase::Train && row.calls >= STEPS && row.waits > Some(0);
    let waiting: Vec<_> = rows.iter().filter(in_steps).collect();
    let sum: u64 = waiting.iter().filter_map(|row| row.waits).sum();
    let listed: Vec<_> =
        waiting.iter().map(|row| format!("{} {}", row.name, row.waits.unwrap_or_default())).collect();
    let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
    ensure(rows.iter().any(|row| row.waits.is_some()), || "waits are not counted".into())?;
    ensure(sum <= per_ten_steps * STEPS / 10, || format!("{sum} waits in {STEPS} steps: {listed}"))?;
    Ok(format!("in {STEPS} steps: {listed}").into())
}

/// Checks that a synchronized profile attributes kernel time to the operation that queues it.
fn synchronized(device: Device) -> Result<Found> {
    if device == Device::Cpu {
        return Ok(Found::Skip("only kernels of a GPU run later than the host"));
    }
    let time = |synchronized| {
        let builder = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).profile(true);
        let builder = builder.profile_synchronized(synchronized).observe::<AfterLoss>("large", |cx| {
            let large = Tensor::ones([4096, 4096], (Kind::Float, cx.device()));
            let _product = large.matmul(&large).matmul(&large);
        });
        let mut trainer = builder.build()?;
        trainer.fit(&mut rows(128)?, None)?;
        let profile = trainer.profile().ok_or_else(|| Error::msg("there is no profile"))?;
        let rows = profile.rows();
        let hook = rows.iter().find(|row| row.kind == SpanKind::Hook && row.name.contains("large"));
        hook.map(|row| row.mean()).ok_or_else(|| Error::msg("the hook is not in the profile"))
    };
    let (queued, run) = (time(false)?, time(true)?);
    ensure(run > queued, || format!("{run:?} synchronized, {queued:?} otherwise"))?;
    Ok(format!("two products of 4096: {run:?}, queued in {queued:?}").into())
}

fn trace(device: Device) -> Result<Found> {
    let folder = scratch("trace");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("trace.json");
    let builder = mlp(0.0).optimizer(AdamW::new(1e-2)).device(device).hook(KernelProfiler::new(&path, 4..8));
    builder.build()?.fit(&mut rows(256)?, None)?;
    let text = std::fs::read_to_string(&path)?;
    let count = |what: &str| text.matches(what).count();
    let (kernels, backward) = (count(r#""cat": "kernel""#), count("AddmmBackward"));
    ensure(backward > 0, || "the backward pass is not in the trace".into())?;
    ensure(kernels > 0 || device == Device::Cpu, || "no kernel is in the trace".into())?;
    Ok(format!("{kernels} kernels, {backward} spans of backward passes in 4 steps").into())
}
