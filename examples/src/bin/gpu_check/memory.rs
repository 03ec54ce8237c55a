//! The memory of the GPU: statistics, the allocator's cache, errors, the largest batch, and several
//! GPUs.

use trainer::cuda;
use trainer::finders::{BatchSizeFinder, BatchSizeLimit};
use trainer::hooks::CudaMemoryMonitor;
use trainer::prelude::*;

use crate::fixtures::{mlp, rows};
use crate::{Check, Found, ensure};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("counts of memory", counts),
    ("CudaMemoryMonitor", monitor),
    ("a batch that does not fit", too_large),
    ("find_batch_size", find_batch_size),
    ("several GPUs", several),
];

const NO_GPU: Found = Found::Skip("libtorch counts the memory of GPUs only");

fn counts(device: Device) -> Result<Found> {
    if device == Device::Cpu {
        return Ok(NO_GPU);
    }
    cuda::empty_cache()?;
    cuda::reset_peaks(device)?;
    let before = cuda::memory(device)?;
    let large = Tensor::zeros([256 << 20], (Kind::Uint8, device));
    let during = cuda::memory(device)?;
    drop(large);
    let after = cuda::memory(device)?;
    cuda::empty_cache()?;
    let emptied = cuda::memory(device)?;
    ensure(during.allocated >= before.allocated + (256 << 20), || "`allocated` does not grow".into())?;
    ensure(after.allocated == before.allocated, || "`allocated` does not fall".into())?;
    ensure(after.peak_allocated == during.peak_allocated, || "the peak falls by itself".into())?;
    ensure(after.reserved > emptied.reserved, || "`empty_cache` returns nothing".into())?;
    cuda::reset_peaks(device)?;
    let reset = cuda::memory(device)?;
    ensure(reset.peak_allocated == reset.allocated, || "`reset_peaks` does not reset".into())?;
    Ok(format!("{} MiB returned", (after.reserved - emptied.reserved) >> 20).into())
}

fn monitor(device: Device) -> Result<Found> {
    if device == Device::Cpu {
        return Ok(NO_GPU);
    }
    let builder = mlp(0.0).device(device).optimizer(Sgd::new(0.1)).hook(CudaMemoryMonitor::new().every(1));
    let summary = builder.build()?.fit(&mut rows(64)?, None)?;
    let peak = summary.metrics["train/cuda_memory/peak_allocated"];
    ensure(peak > 0.0 && peak < 200.0, || format!("the peak of the fit is {peak} MiB"))?;
    Ok(format!("{peak:.2} MiB at most").into())
}

/// Checks the error for a batch that is too large. The error names the operation and the batch, and
/// no panic is printed.
fn too_large(device: Device) -> Result<Found> {
    if device == Device::Cpu {
        return Ok(NO_GPU);
    }
    let builder = mlp(0.0).device(device).optimizer(Sgd::new(0.1));
    let builder = builder.on::<BeforeTransfer>("grow", |cx| {
        // The tensor needs 64 TiB on the device, but almost no memory on the CPU.
        let inputs = Tensor::zeros([1], (Kind::Float, Device::Cpu)).expand([1 << 40, 16], false);
        cx.batch_mut::<(Tensor, Tensor)>().map(|batch| batch.0 = inputs)
    });
    let error = builder.build()?.fit(&mut rows(64)?, None).err().map(|error| error.to_string());
    let error = error.ok_or_else(|| Error::msg("there is no error"))?;
    ensure(error.contains("out of memory") && error.contains("transfer"), || error.clone())?;
    Ok("an error of `transfer` that names the batch".to_owned().into())
}

fn find_batch_size(device: Device) -> Result<Found> {
    if device == Device::Cpu {
        return Ok(NO_GPU);
    }
    let _hold = take_all_but(device, 512 << 20)?;
    let before = cuda::memory(device)?;
    let mut trainer = mlp(0.0).device(device).optimizer(Sgd::new(0.1)).build()?;
    let loader = |samples: usize| {
        let rows = i64::try_from(4 * samples).unwrap_or(i64::MAX);
        let inputs = Tensor::zeros([1, 16], (Kind::Float, Device::Cpu)).expand([rows, 16], false);
        let labels = Tensor::zeros([1], (Kind::Int64, Device::Cpu)).expand([rows], false);
        Ok(InMemory::new((inputs, labels))?.batch_size(samples))
    };
    let found = trainer.find_batch_size(loader, &BatchSizeFinder::new().from(1024).max(1 << 24))?;
    let after = cuda::memory(device)?;
    ensure(found.limit == BatchSizeLimit::Memory, || format!("{found:?}"))?;
    ensure(after.reserved < before.reserved + (256 << 20), || {
        format!("{} MiB stay reserved", (after.reserved - before.reserved) >> 20)
    })?;
    Ok(format!("{} rows in 512 MiB", found.size).into())
}

/// Returns tensors that occupy all memory of the device except for about this many bytes.
fn take_all_but(device: Device, bytes: i64) -> Result<Vec<Tensor>> {
    cuda::empty_cache()?;
    let mut kept = Vec::new();
    let mut size: i64 = 64 << 30;
    while size >= 64 << 20 {
        match Tensor::f_empty([size], (Kind::Uint8, device)) {
            Ok(tensor) => kept.push(tensor),
            Err(_) => size /= 2,
        }
    }
    let mut free = 0;
    while free < bytes {
        let smallest = kept.pop().ok_or_else(|| Error::msg("the device has too little memory"))?;
        free += i64::try_from(smallest.numel()).unwrap_or(i64::MAX);
    }
    cuda::empty_cache()?;
    Ok(kept)
}

fn several(device: Device) -> Result<Found> {
    if device == Device::Cpu || tch::Cuda::device_count() < 2 {
        return Ok(Found::Skip(
            "ranks need two GPUs: TRAINER_DEVICE=cuda cargo test -p tests --test it ranks",
        ));
    }
    let mut trainer = mlp(0.0).device(Device::Cuda(1)).optimizer(AdamW::new(1e-2)).build()?;
    trainer.fit(&mut rows(64)?.prefetch(2).to_device(Device::Cuda(1)), None)?;
    ensure(trainer.vars().iter().all(|var| var.tensor.device() == Device::Cuda(1)), || {
        "a variable is on another GPU".into()
    })?;
    Ok("a fit on the second GPU".to_owned().into())
}
