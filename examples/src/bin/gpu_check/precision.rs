//! Mixed precision, and the settings for precision and speed.

use std::sync::{Arc, Mutex};

use trainer::MatmulPrecision;
use trainer::hooks::Amp;
use trainer::prelude::*;

use crate::fixtures::{conv, images, mlp, rows, weights};
use crate::{Check, Found, ensure};

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("Amp, bf16", |device| trains_in(device, Amp::bf16(), Kind::BFloat16)),
    ("Amp, fp16", |device| trains_in(device, Amp::fp16(), Kind::Half)),
    ("Amp leaves nothing behind", leaves_nothing),
    ("Amp, an infinite gradient", infinite_gradient),
    ("Amp, a loss that autocast refuses", refused_loss),
    ("matmul_precision, restored", matmul_precision),
    ("cudnn_benchmark", cudnn_benchmark),
];

fn trains_in(device: Device, amp: Amp, kind: Kind) -> Result<Found> {
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&kinds);
    let builder = mlp(0.0).optimizer(AdamW::new(1e-2)).device(device).epochs(8).hook(amp);
    let builder = builder.observe::<AfterPred>("kind", move |cx| {
        note.lock().expect("not poisoned").extend(cx.pred::<Tensor>().map(Tensor::kind));
    });
    let loss = builder.build()?.fit(&mut rows(256)?, None)?.metrics["train/loss"];
    let kinds = kinds.lock().expect("not poisoned");
    ensure(!kinds.is_empty() && kinds.iter().all(|own| *own == kind), || {
        format!("a prediction is {:?} instead of {kind:?}", kinds.iter().find(|own| **own != kind))
    })?;
    ensure(loss < 0.4, || format!("the loss is {loss:.3} after 8 epochs"))?;
    Ok(format!("loss {loss:.3}").into())
}

/// Checks that a fit leaves nothing behind. Autocast caches converted weights until the forward
/// pass ends. If the cache were kept, the second fit would compute with the weights of the first.
fn leaves_nothing(device: Device) -> Result<Found> {
    let fitted = || {
        let builder = mlp(0.0).optimizer(Sgd::new(0.1)).deterministic(true).hook(Amp::bf16());
        let mut trainer = builder.device(device).build()?;
        trainer.fit(&mut rows(64)?, None)?;
        Ok::<_, Error>(weights(&trainer))
    };
    let (first, second) = (fitted()?, fitted()?);
    ensure(first == second, || "the second fit differs from the first".into())?;
    let square = Tensor::ones([8, 8], (Kind::Float, device));
    let kind = square.matmul(&square).kind();
    ensure(kind == Kind::Float, || format!("a product after the fit is {kind:?}"))?;
    Ok("two equal fits, and f32 after them".to_owned().into())
}

fn infinite_gradient(device: Device) -> Result<Found> {
    let builder = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).epochs(1).hook(Amp::fp16());
    let builder = builder.on::<AfterLoss>("overflow", |cx| cx.scale_loss(1e30));
    let mut trainer = builder.max_steps(100).build()?;
    let before = weights(&trainer);
    trainer.fit(&mut rows(32)?, None)?;
    let scale = trainer.hook::<Amp>()?.scale();
    ensure(weights(&trainer) == before, || "a step was taken".into())?;
    ensure(scale == 65536.0 / 4.0, || format!("the scale is {scale} after two batches"))?;
    Ok("both steps are skipped, and the scale is halved twice".to_owned().into())
}

/// Checks a loss that libtorch rejects under autocast on a GPU, but computes on the CPU.
fn refused_loss(device: Device) -> Result<Found> {
    if device == Device::Cpu {
        return Ok(Found::Skip("only GPUs refuse it"));
    }
    let vs = nn::VarStore::new(device);
    let fc = nn::linear(vs.root() / "fc", 16, 1, Default::default());
    let loss = |pred: &Tensor, labels: &Tensor| {
        let target = labels.to_kind(Kind::Float).unsqueeze(1);
        pred.sigmoid().binary_cross_entropy::<Tensor>(&target, None, Reduction::Mean)
    };
    let builder = Trainer::builder(Supervised::new(vs, fc, loss)).discover(Discover::None);
    let mut trainer = builder.optimizer(Sgd::new(0.1)).hook(Amp::fp16()).build()?;
    let mut data = rows(16)?;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trainer.fit(&mut data, None)));
    let text = match outcome {
        Ok(Ok(_)) => return Err(Error::msg("it was computed")),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
    };
    ensure(text.contains("binary_cross_entropy"), || format!("another error: {text}"))?;
    Ok("refused with the name of the loss".to_owned().into())
}

fn matmul_precision(device: Device) -> Result<Found> {
    tch::manual_seed(1);
    let [a, b] = [(); 2].map(|()| Tensor::randn([512, 512], (Kind::Float, device)));
    let product = |a: &Tensor, b: &Tensor| a.matmul(b).to_device(Device::Cpu).to_kind(Kind::Double);
    let exact = a.to_kind(Kind::Double).matmul(&b.to_kind(Kind::Double)).to_device(Device::Cpu);
    let before = product(&a, &b);
    let error = |product: &Tensor| (product - &exact).abs().max().double_value(&[]);
    let within = Arc::new(Mutex::new(f64::NAN));
    let note = Arc::clone(&within);
    let (one, other, reference) = (a.shallow_clone(), b.shallow_clone(), exact.shallow_clone());
    let builder = mlp(0.0).optimizer(Sgd::new(0.1)).device(device).matmul_precision(MatmulPrecision::High);
    let builder = builder.observe::<AfterStep>("product", move |_| {
        let product = one.matmul(&other).to_device(Device::Cpu).to_kind(Kind::Double);
        *note.lock().expect("not poisoned") = (product - &reference).abs().max().double_value(&[]);
    });
    builder.build()?.fit(&mut rows(16)?, None)?;
    ensure(product(&a, &b) == before, || "it is not restored after the fit".into())?;
    let within = *within.lock().expect("not poisoned");
    Ok(format!("largest error {:.1e}, with `High` {within:.1e}", error(&before)).into())
}

fn cudnn_benchmark(device: Device) -> Result<Found> {
    let loss = |benchmark| {
        let builder = conv().optimizer(Sgd::new(0.05)).device(device).cudnn_benchmark(benchmark);
        Ok::<_, Error>(builder.epochs(2).build()?.fit(&mut images(64)?, None)?.metrics["train/loss"])
    };
    let [without, with] = [loss(false)?, loss(true)?];
    ensure((without - with).abs() < 1e-2, || format!("the loss is {with}, without it {without}"))?;
    Ok(format!("loss {with:.4}, without it {without:.4}").into())
}
