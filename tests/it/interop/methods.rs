//! Mixed precision, averages and training methods: losses, scales and weights match PyTorch.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::hooks::{Amp, Checkpoint, Ema, Sam, Swa};
use trainer::prelude::*;

use super::run_script;
use crate::support::{child_process, distance, flat_parameters, scratch};

/// A loss that accepts class indices or probabilities.
type CrossEntropy = fn(&Tensor, &Tensor) -> Tensor;
type Classifier = Supervised<nn::Sequential, CrossEntropy>;

/// Returns the network of `methods.py`.
fn net(root: &nn::Path<'_>, inputs: i64, width: i64) -> nn::Sequential {
    nn::seq()
        .add(nn::linear(root / "fc1", inputs, width, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(root / "fc2", width, width, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(root / "fc3", width, 4, Default::default()))
}

/// Returns a trainer with the initial weights that are in the folder.
pub(crate) fn trainer(
    folder: &Path,
    optimizer: impl Optimizer + 'static,
    with: impl FnOnce(TrainerBuilder<Classifier>) -> TrainerBuilder<Classifier>,
) -> Trainer<Classifier> {
    tch::set_num_threads(1);
    let mut vs = nn::VarStore::new(Device::Cpu);
    let weights = read(&folder.join("weights.safetensors"));
    let size = weights["fc1.weight"].size();
    let net = net(&vs.root(), size[1], size[0]);
    vs.load(folder.join("weights.safetensors")).unwrap();
    let loss: CrossEntropy =
        |logits, targets| logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0);
    let builder = Trainer::builder(Supervised::new(vs, net, loss)).optimizer(optimizer);
    with(builder.discover(Discover::None).epochs(25)).build().unwrap()
}

/// Returns the data in the folder in eight batches, always in the same order.
pub(crate) fn batches(folder: &Path) -> InMemory<(Tensor, Tensor)> {
    let mut data = read(&folder.join("data.safetensors"));
    let inputs = data.remove("inputs").unwrap();
    let labels = data.remove("labels").unwrap();
    let batch = usize::try_from(inputs.size()[0] / 8).unwrap();
    InMemory::new((inputs, labels)).unwrap().batch_size(batch)
}

fn read(file: &Path) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(file).unwrap().into_iter().collect()
}

/// Writes initial weights and data for a network of this size into the folder.
fn prepare(folder: &Path, inputs: i64, width: i64, rows: i64) {
    let vs = nn::VarStore::new(Device::Cpu);
    drop(net(&vs.root(), inputs, width));
    let weights: Vec<_> = vs.variables().into_iter().collect();
    Tensor::write_safetensors(&weights, folder.join("weights.safetensors")).unwrap();
    let xs = Tensor::randn([rows, inputs], (Kind::Float, Device::Cpu));
    let labels =
        (xs.narrow(1, 0, 4) + Tensor::randn([rows, 4], (Kind::Float, Device::Cpu)) * 0.3).argmax(1, false);
    Tensor::write_safetensors(&[("inputs", xs), ("labels", labels)], folder.join("data.safetensors"))
        .unwrap();
}

/// Returns the largest difference between a parameter and the tensor `<prefix><name>` in `theirs`.
fn difference(trainer: &Trainer<impl Task>, theirs: &BTreeMap<String, Tensor>, prefix: &str) -> f64 {
    let each = trainer
        .vars()
        .parameters()
        .map(|var| distance(&var.tensor.detach(), &theirs[&format!("{prefix}{}", var.name)]));
    each.fold(0.0, f64::max)
}

/// Adds a hook that records the loss of each batch.
fn with_losses(
    builder: TrainerBuilder<Classifier>,
    losses: &Arc<Mutex<Vec<f64>>>,
) -> TrainerBuilder<Classifier> {
    let losses = losses.clone();
    builder.on::<AfterStep>("losses", move |cx| {
        losses.lock().unwrap().push(cx.step_loss().unwrap().double_value(&[]));
    })
}

#[test]
#[ignore = "run by `make interop`, which needs PyTorch"]
fn losses_in_bf16_match_pytorch() {
    let folder = scratch("interop-bf16");
    prepare(&folder, 16, 32, 256);
    let losses = Arc::default();
    let mut own =
        trainer(&folder, AdamW::new(1e-3), |builder| with_losses(builder, &losses).hook(Amp::bf16()));
    own.fit(&mut batches(&folder), None).unwrap();
    run_script("methods.py", &folder);
    let theirs = read(&folder.join("theirs.safetensors"));
    let theirs: Vec<f64> = Vec::try_from(&theirs["bf16/losses"].to_kind(Kind::Double)).unwrap();
    let own = losses.lock().unwrap();
    assert_eq!((own.len(), theirs.len()), (200, 200));
    let mut largest = 0.0_f64;
    for (nth, (own, theirs)) in own.iter().zip(&theirs).enumerate() {
        let ulp = 2.0_f64.powf(theirs.abs().log2().floor() - 7.0);
        assert!((own - theirs).abs() <= ulp, "step {nth}: {own} and {theirs}");
        largest = largest.max((own - theirs).abs() / ulp);
    }
    println!("200 losses in bf16: within {largest:.3} ulp of bf16, from {:.4} to {:.4}", own[0], own[199]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The batches whose gradients overflow, as in `methods.py`.
const OVERFLOWS: [u64; 6] = [0, 1, 9, 10, 40, 41];

#[test]
#[ignore = "run by `make interop`, which needs PyTorch"]
fn loss_scales_match_pytorch() {
    let folder = scratch("interop-fp16");
    prepare(&folder, 16, 32, 256);
    let scales = Arc::new(Mutex::new(Vec::new()));
    let steps = Arc::new(Mutex::new(Vec::new()));
    let note_scale = scales.clone();
    let note_step = steps.clone();
    let mut own = trainer(&folder, AdamW::new(1e-3), |builder| {
        builder
            .hook(Amp::fp16().init_scale(1024.0).growth_interval(4))
            .on::<BeforeOptStep>("overflow", |cx| {
                if OVERFLOWS.contains(&cx.counters().batches_seen) {
                    cx.grads().for_each(|(_, mut grad)| drop(grad.fill_(f64::INFINITY)));
                }
            })
            .on::<AfterStep>("scale", move |cx| {
                note_scale.lock().unwrap().push(cx.hook::<Amp>().unwrap().scale());
                note_step.lock().unwrap().push(cx.counters().optimizer_steps as f64);
            })
    });
    own.fit(&mut batches(&folder), None).unwrap();
    run_script("methods.py", &folder);
    let theirs = read(&folder.join("theirs.safetensors"));
    let of = |key: &str| -> Vec<f64> { Vec::try_from(&theirs[key].to_kind(Kind::Double)).unwrap() };
    assert_eq!(*scales.lock().unwrap(), of("fp16/scales"));
    assert_eq!(*steps.lock().unwrap(), of("fp16/steps"));
    let apart = difference(&own, &theirs, "fp16/");
    println!("200 batches with a scaler: the same scales and steps; weights within {apart:.1e}");
    assert!(apart < 1e-4);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "run by `make interop`, which needs PyTorch"]
fn averages_match_pytorch() {
    let folder = scratch("interop-averages");
    prepare(&folder, 16, 32, 256);
    let train = |with: &dyn Fn(TrainerBuilder<Classifier>) -> TrainerBuilder<Classifier>, live: &str| {
        let rows = Arc::new(Mutex::new(Vec::new()));
        let note = rows.clone();
        let mut own = trainer(&folder, Sgd::new(0.05), |builder| {
            with(builder.epochs(125)).on::<AfterOptStep>("live", move |cx| {
                let flat: Vec<_> = cx.vars().parameters().map(|var| var.tensor.detach().view([-1])).collect();
                note.lock().unwrap().push(Tensor::cat(&flat, 0));
            })
        });
        own.fit(&mut batches(&folder), None).unwrap();
        let rows = Tensor::stack(&rows.lock().unwrap(), 0);
        assert_eq!(rows.size()[0], 1000);
        Tensor::write_safetensors(&[("live", rows)], folder.join(live)).unwrap();
        own
    };
    let checkpoints = folder.join("checkpoints");
    let ema =
        train(&|builder| builder.hook(Ema::new(0.99)).hook(Checkpoint::new(&checkpoints)), "ema.safetensors");
    let newest = ema.hook::<Checkpoint>().unwrap().newest().unwrap();
    std::fs::copy(newest.join("averages.safetensors"), folder.join("averages.safetensors")).unwrap();
    let swa = train(&|builder| builder.hook(Swa::from_epoch(25)), "swa.safetensors");

    run_script("methods.py", &folder);
    let theirs = read(&folder.join("theirs.safetensors"));
    let flat = |averages: Vec<(&str, &Tensor)>| {
        Tensor::cat(&averages.iter().map(|(_, average)| average.view([-1])).collect::<Vec<_>>(), 0)
    };
    let ema_average = flat(ema.hook::<Ema>().unwrap().average().collect());
    let swa_average = flat(swa.hook::<Swa>().unwrap().average().collect());
    let of_ema = distance(&ema_average, &theirs["ema"]);
    let of_swa = distance(&swa_average, &theirs["swa"]);
    println!("1000 steps: EMA within {of_ema:.1e}, SWA within {of_swa:.1e}");
    assert!(of_ema < 1e-6 && of_swa < 1e-6);
    assert_ne!(flat_parameters(&ema), ema_average);
    // Python read the averages from the file bit for bit.
    for (name, average) in ema.hook::<Ema>().unwrap().average() {
        assert_eq!(&theirs[&format!("read/{name}")], average);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "run by `make interop`, which needs PyTorch"]
fn sam_and_mix_up_match_reference_implementations() {
    let folder = scratch("interop-sam");
    prepare(&folder, 16, 32, 256);
    let momentum = || Sgd::new(0.05).momentum(0.9);
    let mut sam = trainer(&folder, momentum(), |builder| builder.hook(Sam::new(0.05)));
    sam.fit(&mut batches(&folder), None).unwrap();
    let mut adaptive = trainer(&folder, momentum(), |builder| builder.hook(Sam::new(0.5).adaptive(true)));
    adaptive.fit(&mut batches(&folder), None).unwrap();
    let child =
        child_process("methods::mix_up_for_pytorch").env("TRAINER_TESTS_FOLDER", &folder).output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));

    run_script("methods.py", &folder);
    let theirs = read(&folder.join("theirs.safetensors"));
    let of_sam = difference(&sam, &theirs, "sam/");
    let of_adaptive = difference(&adaptive, &theirs, "asam/");
    let mixed = read(&folder.join("mix_up.safetensors"));
    let of_mix_up =
        mixed.iter().map(|(name, own)| distance(own, &theirs[&format!("mix_up/{name}")])).fold(0.0, f64::max);
    println!("200 steps: SAM within {of_sam:.1e}, adaptive {of_adaptive:.1e}, MixUp {of_mix_up:.1e}");
    assert!(of_sam < 1e-5 && of_adaptive < 1e-5 && of_mix_up < 1e-5);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Prints the time of a step in bf16 relative to a step of PyTorch's loop.
#[test]
#[ignore = "run by `make interop`, which needs PyTorch"]
fn a_bf16_step_is_timed_against_pytorch() {
    let folder = scratch("interop-speed");
    prepare(&folder, 256, 512, 8 * 128);
    let mut own = trainer(&folder, AdamW::new(1e-3), |builder| builder.epochs(1).hook(Amp::bf16()));
    let mut data = batches(&folder);
    let (inputs, labels) = data.batches(0, 0).unwrap().next().unwrap().unwrap();
    let mut loader = from_fn(|_| (0..50).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
    let mut ratios: Vec<f64> = (0..4)
        .map(|_| {
            let mut time = || {
                let start = Instant::now();
                own.fit(&mut loader, None).unwrap();
                start.elapsed().as_secs_f64() / 50.0
            };
            let own = (time(), time(), time());
            std::fs::write(folder.join("speed"), "").unwrap();
            run_script("methods.py", &folder);
            let theirs: f64 = std::fs::read_to_string(folder.join("seconds.txt")).unwrap().parse().unwrap();
            let own = own.1.min(own.2);
            println!("a step in bf16: {:.0} µs, PyTorch {:.0} µs", own * 1e6, theirs * 1e6);
            theirs / own
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "speed relative to PyTorch's loop: {:.2} (median of {ratios:.2?})",
        (ratios[1] + ratios[2]) / 2.0
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
