//! The estimate of a run beside what the run takes, and that it changes nothing.

use std::fs;

use trainer::TrainerBuilder;
use trainer::hooks::{ActivationCheckpointing, Amp, Checkpoint, EarlyStopping, Ema, Freeze};
use trainer::loggers::Csv;
use trainer::modules::Name;
use trainer::optim::Tch;
use trainer::prelude::*;
use trainer::testing::peak_memory;

use crate::support::{child_process, device, exact_state, scratch};

type Net = nn::FuncT<'static>;
type Free = Supervised<Net, fn(&Tensor, &Tensor) -> Tensor>;
type Rows = (Tensor, Tensor);

/// A model: its name, its task with modules that are named `block…`, and its rows.
type Model = (&'static str, fn() -> Free, fn(i64) -> Rows);

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn task<F>(loss: fn(&Tensor, &Tensor) -> Tensor, net: impl FnOnce(&nn::Path<'_>) -> F) -> Free
where
    F: Fn(&Tensor, bool) -> Tensor + Send + 'static,
{
    tch::set_num_threads(1);
    let vars = nn::VarStore::new(device());
    let net = nn::func_t(net(&vars.root()));
    Supervised::new(vars, net, loss)
}

fn classify(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.to_kind(Kind::Float).cross_entropy_for_logits(labels)
}

fn reconstruct(pred: &Tensor, target: &Tensor) -> Tensor {
    pred.to_kind(Kind::Float).mse_loss(target, Reduction::Mean)
}

/// Returns a closure that runs as a named module.
fn block<F>(path: nn::Path<'_>, compute: F) -> impl Fn(&Tensor, bool) -> Tensor + use<F>
where
    F: Fn(&Tensor, bool) -> Tensor,
{
    let name = Name::from(path);
    move |xs, trains| name.run(xs, |xs| compute(xs, trains))
}

fn linear(path: nn::Path<'_>, from: i64, to: i64) -> nn::Linear {
    nn::linear(path, from, to, nn::LinearConfig::default())
}

fn conv(path: nn::Path<'_>, from: i64, to: i64) -> nn::Conv2D {
    nn::conv2d(path, from, to, 3, nn::ConvConfig { padding: 1, ..Default::default() })
}

fn labels(count: i64) -> Tensor {
    Tensor::arange(count, (Kind::Int64, device())).remainder(10)
}

fn vectors(count: i64) -> Rows {
    (Tensor::arange(count * 256, FLOAT).sin().view([count, 256]), labels(count))
}

fn images(count: i64) -> Rows {
    (Tensor::arange(count * 3 * 256, FLOAT).sin().view([count, 3, 16, 16]), labels(count))
}

fn sequences(count: i64) -> Rows {
    (Tensor::arange(count * 32 * 64, FLOAT).sin().view([count, 32, 64]), labels(count))
}

fn tokens(count: i64) -> Rows {
    (Tensor::arange(count * 32, (Kind::Int64, device())).remainder(997).view([count, 32]), labels(count))
}

fn same(count: i64) -> Rows {
    let (inputs, _) = vectors(count);
    (inputs.shallow_clone(), inputs)
}

fn perceptron() -> Free {
    task(classify, |root| {
        let (fc1, fc2, fc3) =
            (linear(root / "fc1", 256, 512), linear(root / "fc2", 512, 512), linear(root / "fc3", 512, 10));
        let hidden = block(root / "block", move |xs, _| xs.apply(&fc1).relu().apply(&fc2).relu());
        move |xs, trains| hidden(xs, trains).apply(&fc3)
    })
}

fn convolutions() -> Free {
    task(classify, |root| {
        let (conv1, conv2, fc) =
            (conv(root / "conv1", 3, 32), conv(root / "conv2", 32, 32), linear(root / "fc", 32 * 64, 10));
        let features = block(root / "block", move |xs, _| xs.apply(&conv1).relu().apply(&conv2).relu());
        move |xs, trains| {
            features(xs, trains).max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false).flat_view().apply(&fc)
        }
    })
}

fn residual() -> Free {
    task(classify, |root| {
        let stem = conv(root / "stem", 3, 16);
        let blocks: Vec<_> = (0..3)
            .map(|nth| {
                let path = root / format!("block{nth}");
                let (conv1, conv2) = (conv(&path / "conv1", 16, 16), conv(&path / "conv2", 16, 16));
                let norms =
                    ["norm1", "norm2"].map(|name| nn::batch_norm2d(&path / name, 16, Default::default()));
                block(path, move |xs, trains| {
                    let hidden = xs.apply(&conv1).apply_t(&norms[0], trains).relu();
                    (xs + hidden.apply(&conv2).apply_t(&norms[1], trains)).relu()
                })
            })
            .collect();
        let fc = linear(root / "fc", 16, 10);
        move |xs, trains| {
            let hidden = blocks.iter().fold(xs.apply(&stem), |xs, block| block(&xs, trains));
            hidden.mean_dim([2, 3].as_slice(), false, Kind::Float).apply(&fc)
        }
    })
}

fn attention(xs: &Tensor, qkv: &nn::Linear, out: &nn::Linear, dropout: f64) -> Tensor {
    let (rows, length, width) = xs.size3().unwrap();
    let parts = xs.apply(qkv).view([rows, length, 3, 4, width / 4]).permute([2, 0, 3, 1, 4]);
    let [q, k, v] = [0, 1, 2].map(|nth| parts.select(0, nth));
    let weights = (q.matmul(&k.transpose(-2, -1)) * 0.25).softmax(-1, Kind::Float);
    let mixed = weights.dropout(dropout, dropout > 0.0).matmul(&v);
    mixed.transpose(1, 2).reshape([rows, length, width]).apply(out)
}

fn transformer() -> Free {
    task(classify, |root| {
        let blocks: Vec<_> = (0..2)
            .map(|nth| {
                let path = root / format!("block{nth}");
                let (qkv, out) = (linear(&path / "qkv", 64, 192), linear(&path / "out", 64, 64));
                let (up, down) = (linear(&path / "up", 64, 256), linear(&path / "down", 256, 64));
                let norms =
                    ["norm1", "norm2"].map(|name| nn::layer_norm(&path / name, vec![64], Default::default()));
                block(path, move |xs, trains| {
                    let dropout = if trains { 0.1 } else { 0.0 };
                    let xs = xs + attention(&xs.apply(&norms[0]), &qkv, &out, dropout);
                    &xs + xs.apply(&norms[1]).apply(&up).gelu("none").apply(&down)
                })
            })
            .collect();
        let fc = linear(root / "fc", 64, 10);
        move |xs, trains| {
            let hidden = blocks.iter().fold(xs.shallow_clone(), |xs, block| block(&xs, trains));
            hidden.mean_dim([1].as_slice(), false, Kind::Float).apply(&fc)
        }
    })
}

fn recurrent() -> Free {
    task(classify, |root| {
        let lstm = nn::lstm(root / "lstm", 64, 128, nn::RNNConfig::default());
        let (fc1, fc2) = (linear(root / "fc1", 128, 128), linear(root / "fc2", 128, 10));
        let head = block(root / "block", move |xs, _| xs.apply(&fc1).tanh());
        move |xs, trains| {
            let hidden = nn::RNN::seq(&lstm, xs).0;
            head(&hidden, trains).select(1, 31).apply(&fc2)
        }
    })
}

fn language() -> Free {
    task(classify, |root| {
        let embedding = nn::embedding(root / "embedding", 1000, 128, Default::default());
        let (fc1, fc2) = (linear(root / "fc1", 128, 256), linear(root / "fc2", 256, 10));
        let hidden = block(root / "block", move |xs, _| xs.apply(&fc1).gelu("none"));
        move |xs, trains| {
            hidden(&xs.apply(&embedding), trains).mean_dim([1].as_slice(), false, Kind::Float).apply(&fc2)
        }
    })
}

fn autoencoder() -> Free {
    task(reconstruct, |root| {
        let sizes = [256, 1024, 64, 1024, 256];
        let layers: Vec<_> =
            sizes.windows(2).enumerate().map(|(nth, pair)| linear(root / nth, pair[0], pair[1])).collect();
        block(root / "block", move |xs, trains| {
            layers.iter().fold(xs.shallow_clone(), |xs, layer| xs.apply(layer).dropout(0.1, trains).tanh())
        })
    })
}

/// A wide network with a small batch, whose peak is in the optimizer step.
fn wide() -> Free {
    task(classify, |root| {
        let (fc1, fc2) = (linear(root / "fc1", 256, 4096), linear(root / "fc2", 4096, 10));
        let hidden = block(root / "block", move |xs, _| xs.apply(&fc1).relu());
        move |xs, trains| hidden(xs, trains).apply(&fc2)
    })
}

const MODELS: [Model; 8] = [
    ("perceptron", perceptron, vectors),
    ("convolutions", convolutions, images),
    ("residual, batch norm", residual, images),
    ("transformer", transformer, sequences),
    ("LSTM", recurrent, sequences),
    ("embedding", language, tokens),
    ("autoencoder", autoencoder, same),
    ("wide", wide, vectors),
];

type Set = fn(TrainerBuilder<Free>) -> TrainerBuilder<Free>;

const SETTINGS: [(&str, Set); 5] = [
    ("plain", |builder| builder),
    ("AMP", |builder| builder.hook(Amp::bf16())),
    ("checkpointing", |builder| builder.hook(ActivationCheckpointing::new("block*"))),
    ("accumulation", |builder| builder.accumulate(4)),
    ("EMA", |builder| builder.hook(Ema::new(0.9))),
];

const BATCH: usize = 32;

fn builder(task: Free, set: Set) -> TrainerBuilder<Free> {
    set(Trainer::builder(task).optimizer(AdamW::new(1e-3)).epochs(3).discover(Discover::crates(["trainer"])))
}

/// Compares every estimate with a fit. The memory of all threads counts, so this runs in a process
/// of its own.
#[test]
#[ignore = "runs in a child process"]
fn compares() {
    let mut table = String::new();
    for (name, task, rows) in MODELS {
        for (what, set) in SETTINGS {
            let (train, valid) = (rows(6 * BATCH as i64), rows(2 * BATCH as i64));
            let load = |rows: &Rows| {
                let rows = (rows.0.shallow_clone(), rows.1.shallow_clone());
                InMemory::new(rows).unwrap().batch_size(BATCH).shuffle(1)
            };
            let batch = rows(BATCH as i64);
            let (result, measured) = peak_memory(|| {
                let mut trainer = builder(task(), set).build()?;
                trainer.fit(&mut load(&train), Some(&mut load(&valid)))
            })
            .unwrap();
            result.unwrap();
            let estimated = builder(task(), set).build().unwrap().estimate(&batch).unwrap();
            table += &format!("{name}\t{what}\t{measured}\t{}\n", estimated.peak);
        }
    }
    fs::write(std::env::var("FOUND").unwrap(), table).unwrap();
}

#[test]
fn the_peak_is_never_below_that_of_a_fit_and_at_most_10_percent_above() {
    let folder = scratch("estimate-cells");
    let output = child_process("estimate::compares").env("FOUND", folder.join("found")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = fs::read_to_string(folder.join("found")).unwrap();
    let cells: Vec<(String, f64)> = table
        .lines()
        .map(|line| {
            let cells: Vec<_> = line.split('\t').collect();
            let [measured, estimated] = [2, 3].map(|nth| cells[nth].parse::<f64>().unwrap());
            (format!("{line}\t{:+.2} %", 100.0 * (estimated / measured - 1.0)), estimated / measured)
        })
        .collect();
    for (line, _) in &cells {
        println!("{line}");
    }
    assert_eq!(cells.len(), 40);
    for (line, ratio) in &cells {
        assert!((1.0..=1.1).contains(ratio), "{line}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// The memory of all threads counts, so this runs in a process of its own.
#[test]
#[ignore = "runs in a child process"]
fn counts() {
    const MIB: u64 = 1 << 20;
    let ones = |mib: u64| Tensor::ones([(mib * MIB / 4) as i64], FLOAT);
    let before = ones(64);
    let (inner, outer) = peak_memory(|| {
        drop(before); // allocated before the count, so it does not count
        let kept = ones(64);
        let within = || {
            drop(ones(96));
            drop(kept); // does not count for the inner count
            drop(ones(128));
        };
        let ((), inner) = peak_memory(within).unwrap();
        let of_both = peak_memory(|| ()).unwrap().1;
        drop(ones(144));
        inner + of_both
    })
    .unwrap();
    for (peak, expected) in [(inner, 128), (outer, 160)] {
        assert!((expected * MIB..(expected + 1) * MIB).contains(&peak), "{peak}, not {expected} MiB");
    }
}

#[test]
fn memory_counts_from_the_start_of_a_count_to_its_end() {
    let output = child_process("estimate::counts").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Returns everything that a trainer and libtorch remember, as exact bits.
fn everything<T: Task>(trainer: &Trainer<T>) -> String {
    format!("{:?} {:?} {:?}", exact_state(trainer), trainer.counters(), trainer.history().len())
}

#[test]
fn an_estimate_changes_nothing() {
    crate::support::alone(changes_nothing);
}

fn changes_nothing() {
    let folder = scratch("estimate-unchanged");
    let build = || {
        tch::manual_seed(1);
        builder(residual(), |builder| builder)
            .accumulate(2)
            .hook(Ema::new(0.9))
            .hook(Csv::at(folder.join("values.csv")))
            .hook(Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(4)))
            .hook(EarlyStopping::new("valid/loss", Goal::Minimize).patience(2))
            .build()
            .unwrap()
    };
    let data = |count| InMemory::new(images(count)).unwrap().batch_size(8).shuffle(1);
    let fit = |trainer: &mut Trainer<Free>| {
        trainer.fit(&mut data(32), Some(&mut data(16))).unwrap().metrics.to_string()
    };
    let drawn = || Tensor::rand([4], FLOAT).to_string(80).unwrap();

    let mut plain = build();
    let expected = [fit(&mut plain), everything(&plain), drawn(), fit(&mut plain), everything(&plain)];
    drop(plain);
    fs::remove_dir_all(&folder).unwrap();
    fs::create_dir_all(&folder).unwrap();

    let mut trainer = build();
    let before = everything(&trainer);
    let first = trainer.estimate(&images(8)).unwrap();
    assert_eq!(everything(&trainer), before);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "an estimate writes no files");
    let mut found = vec![fit(&mut trainer), everything(&trainer), drawn()];
    let second = trainer.estimate(&images(8)).unwrap();
    found.extend([fit(&mut trainer), everything(&trainer)]);
    assert_eq!(found, expected);
    // The states that the fit has left are the same as those that the first estimate created.
    assert_eq!(
        (first.parameters, first.optimizer, first.averages),
        (second.parameters, second.optimizer, second.averages)
    );
    assert!(first.checkpoints_a_day.is_some() && first.records_a_day.is_some());
    fs::remove_dir_all(folder).unwrap();
}

/// A student and a teacher, which is in a store of its own.
fn with_teacher() -> Free {
    let mut other = nn::VarStore::new(device());
    let teacher = linear(other.root() / "teacher", 256, 4000);
    other.freeze();
    task(
        |pred, _| pred.square().mean(Kind::Float),
        move |root| {
            let student = linear(root / "student", 256, 10);
            move |xs, _| xs.apply(&student) - xs.apply(&teacher).mean_dim([1].as_slice(), true, Kind::Float)
        },
    )
}

#[test]
fn tensors_outside_of_the_store_and_adapters_are_counted() {
    let estimate = builder(with_teacher(), |builder| builder).build().unwrap().estimate(&vectors(8)).unwrap();
    assert_eq!(estimate.parameters, 4 * (2560 + 10));
    assert_eq!(estimate.others, 4 * (256 * 4000 + 4000));
    assert!(estimate.peak > estimate.others + 4 * estimate.parameters);
    let text = estimate.to_string();
    assert!(
        text.contains("tensors outside of the store") && text.lines().all(|line| line.chars().count() <= 80)
    );

    let frozen = builder(perceptron(), |builder| builder.hook(Freeze::new("fc1.*"))).build().unwrap();
    let estimate = { frozen }.estimate(&vectors(8)).unwrap();
    let fc1 = 4 * (256 * 512 + 512);
    assert_eq!(estimate.gradients, estimate.parameters - fc1);
}

#[test]
fn an_estimate_that_cannot_be_made_says_why() {
    let refused = |error: Error, words: &str| {
        let error = error.to_string();
        assert!(error.contains(words), "{error}");
    };
    let bare = || Trainer::builder(perceptron()).discover(Discover::None);
    refused(bare().build().unwrap().estimate(&vectors(8)).unwrap_err(), "training needs an optimizer");
    let task = perceptron();
    let foreign = Tch::new(nn::Sgd::default(), task.vars(), 0.1).unwrap();
    let mut trainer = Trainer::builder(task).discover(Discover::None).optimizer(foreign).build().unwrap();
    refused(trainer.estimate(&vectors(8)).unwrap_err(), "`estimate` cannot restore the optimizer afterwards");
    // The batch does not fit the model: the error of libtorch, and everything is restored.
    let mut trainer = builder(perceptron(), |builder| builder).build().unwrap();
    let before = everything(&trainer);
    let wrong = (Tensor::ones([8, 255], FLOAT), labels(8));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trainer.estimate(&wrong)));
    assert!(result.is_err() || result.is_ok_and(|result| result.is_err()));
    assert_eq!(everything(&trainer), before);
    assert!(trainer.estimate(&vectors(8)).is_ok());
}

#[test]
fn ranks_divide_the_state_and_exchange_gradients() {
    let estimate = builder(wide(), |builder| builder).build().unwrap().estimate(&vectors(8)).unwrap();
    let [one, two, many] = [1, 2, 1024].map(|ranks| estimate.on_ranks(ranks, 1).unwrap());
    assert_eq!((one.peak, one.optimizer), (estimate.peak, estimate.optimizer));
    assert!(two.optimizer < estimate.optimizer && many.optimizer < two.optimizer + 1);
    assert!(estimate.on_ranks(2, 0).unwrap().peak >= two.peak && two.peak > many.peak - 1);
    let error = estimate.on_ranks(2, 3).unwrap_err().to_string();
    assert!(error.contains("the trainer does not divide parameters (stage 3)"), "{error}");
}
