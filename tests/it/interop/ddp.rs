//! Losses of data-parallel training match PyTorch's `DistributedDataParallel`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::Value as Json;
use trainer::optim::Optimizer;
use trainer::prelude::*;
use trainer::{Span, TrainerBuilder};

use super::torchrun::{torchrun, torchrun_test};
use crate::support::scratch;

/// The number of rows in a batch, over both ranks.
const BATCH: i64 = 16;
const STEPS: usize = 32;

/// The environment variable with the folder of [`child`].
const FOLDER: &str = "TRAINER_DDP_FOLDER";
/// The environment variable with the name of the optimizer of [`child`].
const OPTIMIZER: &str = "TRAINER_DDP_OPTIMIZER";

/// A small convolutional network in f64. `ddp.py` defines the same network.
fn network(root: &nn::Path<'_>) -> nn::Sequential {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq()
        .add(nn::conv2d(root / "conv1", 1, 4, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2))
        .add(nn::conv2d(root / "conv2", 4, 8, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flat_view())
        .add(nn::linear(root / "fc", 8 * 7 * 7, 10, Default::default()))
}

fn builder(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    let mut vars = nn::VarStore::new(Device::Cpu);
    vars.set_kind(Kind::Double);
    let net = network(&vars.root());
    vars.load(folder.join("weights.safetensors")).unwrap();
    Trainer::builder(Supervised::new(vars, net, |logits: &Tensor, labels: &Tensor| {
        // `cross_entropy_for_logits` computes in f32.
        logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0)
    }))
}

/// Trains on both ranks, and writes the losses of the steps.
#[test]
#[ignore = "run by another test under torchrun"]
fn trains_for_comparison_with_ddp() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = PathBuf::from(folder);
    tch::set_num_threads(1);
    let data = Tensor::read_safetensors(folder.join("data.safetensors")).unwrap();
    let find = |name: &str| data.iter().find(|(own, _)| own == name).unwrap().1.shallow_clone();
    let mut train = InMemory::new((find("inputs"), find("labels"))).unwrap().batch_size(BATCH as usize);
    let optimizer: Box<dyn Optimizer> = match &*std::env::var(OPTIMIZER).unwrap() {
        "sgd" => Box::new(Sgd::new(0.05).momentum(0.9)),
        _ => Box::new(AdamW::new(1e-3).weight_decay(0.01)),
    };
    let losses = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&losses);
    let mut trainer = builder(&folder)
        .optimizer(optimizer)
        .discover(Discover::None)
        .epochs(1)
        .record_every(Every::Steps(1))
        .on::<AfterRecord>("losses", move |cx| {
            let record = cx.record();
            if record.span() == Span::Steps {
                let loss = record.scalars().find(|(name, _)| *name == "train/loss");
                noted.lock().unwrap().extend(loss.map(|(_, value)| value));
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut train, None).unwrap();
    if trainer.is_main() {
        let text = serde_json::to_string(&*losses.lock().unwrap()).unwrap();
        fs::write(folder.join("losses.json"), text).unwrap();
    }
}

#[test]
#[ignore = "run by `make interop`"]
fn losses_on_two_ranks_match_distributed_data_parallel() {
    let folder = scratch("interop-ddp");
    let mut vars = nn::VarStore::new(Device::Cpu);
    vars.set_kind(Kind::Double);
    tch::manual_seed(5);
    network(&vars.root());
    vars.save(folder.join("weights.safetensors")).unwrap();
    let rows = BATCH * STEPS as i64;
    let inputs = Tensor::randn([rows, 1, 28, 28], (Kind::Double, Device::Cpu));
    let labels = Tensor::randint(10, [rows], (Kind::Int64, Device::Cpu));
    let data = [("inputs", &inputs), ("labels", &labels)];
    Tensor::write_safetensors(&data, folder.join("data.safetensors")).unwrap();
    for optimizer in ["sgd", "adamw"] {
        let config = serde_json::json!({"optimizer": optimizer, "batch": BATCH, "passes": 1, "warm_up": 0});
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/ddp.py");
        let mut theirs = torchrun(&[], &script);
        let mut ours = torchrun_test(&[], "interop::ddp::trains_for_comparison_with_ddp");
        for command in [theirs.arg(&folder), ours.env(FOLDER, &folder).env(OPTIMIZER, optimizer)] {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let read = |name: &str| -> Json {
            serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
        };
        let numbers = |json: &Json| -> Vec<f64> { serde_json::from_value(json.clone()).unwrap() };
        let theirs = numbers(&read("ddp-0.json")["losses"]);
        let ours = numbers(&read("losses.json"));
        assert_eq!((theirs.len(), ours.len()), (STEPS, STEPS), "{optimizer}");
        let largest = theirs.iter().zip(&ours).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        println!("{optimizer}: the losses differ by at most {largest:.1e}");
        assert!(largest < 1e-9, "{optimizer}: {theirs:?} {ours:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}
