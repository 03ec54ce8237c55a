//! Measures training in one and two processes: against PyTorch's `DistributedDataParallel` and
//! Lightning's strategy `ddp`, and against a hand-written loop with the same reducer; and the cost
//! of the variables of a launcher in a program with one process.
//!
//! The program starts itself for each process. The processor time includes all threads of a rank.
//! On a machine with other load, only the ratios of processor times are meaningful. The comparison
//! with PyTorch and Lightning needs a Python with both and safetensors in `TRAINER_INTEROP`; `make
//! interop` creates `target/interop/bin/python`.

#![allow(missing_docs, clippy::disallowed_macros, clippy::disallowed_methods)]

mod mlp;
#[path = "ratio/record.rs"]
mod record;

#[path = "ratio/process.rs"]
mod process;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mlp::cross_entropy;
use record::record;
use serde::{Deserialize, Serialize};
use tch::nn::OptimizerConfig;
use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::distributed::{Reducer, World};
use trainer::prelude::*;

use process::processor_time;

const ROUNDS: usize = 9;
/// The number of rounds of a comparison within the same processes.
const PAIRS: usize = 40;

/// The environment variable with the measurement that a process runs.
const SCENE: &str = "TRAINER_BENCH_SCENE";
/// The environment variable with the folder that contains the data and the weights.
const FOLDER: &str = "TRAINER_BENCH_FOLDER";

/// The number of rows in a batch, over all ranks.
const BATCH: i64 = 64;
const WARM_UP: i64 = 10;
const STEPS: i64 = 60;

/// The wall-clock time and the processor time of a step, in seconds.
#[derive(Clone, Copy, Deserialize, Serialize)]
struct Times {
    wall: f64,
    processor: f64,
}

impl Times {
    /// Returns the ratios of both times to those of a baseline.
    fn over(self, base: Times) -> Times {
        Times { wall: self.wall / base.wall, processor: self.processor / base.processor }
    }
}

/// Returns the mean time of a step in `run`, which takes `steps` steps.
fn timed(steps: i64, run: impl FnOnce()) -> Times {
    let (wall, processor) = (Instant::now(), processor_time());
    run();
    let steps = steps as f64;
    Times { wall: wall.elapsed().as_secs_f64() / steps, processor: (processor_time() - processor) / steps }
}

/// Returns a closure that trains for some steps and returns the mean time of a step, without the
/// first steps, in which the ranks connect, compare their settings and create the reducer.
fn fitted<T: Task<Batch = (Tensor, Tensor)>>(
    builder: TrainerBuilder<T>,
) -> impl FnMut(&T::Batch, i64) -> Times {
    let clock: Arc<Mutex<Option<(Instant, f64)>>> = Arc::default();
    let started = Arc::clone(&clock);
    let mut trainer = builder
        .on::<AfterStep>("clock", move |cx| {
            if cx.counters().batch_idx == WARM_UP as u64 {
                *started.lock().expect("no panic") = Some((Instant::now(), processor_time()));
            }
        })
        .build()
        .expect("a trainer without other hooks");
    move |batch, steps| {
        trainer.fit(&mut repeated(batch, WARM_UP + steps), None).expect("nothing fails");
        let (wall, processor) = clock.lock().expect("no panic").take().expect("enough steps");
        let steps = steps as f64;
        Times {
            wall: wall.elapsed().as_secs_f64() / steps,
            processor: (processor_time() - processor) / steps,
        }
    }
}

/// A small convolutional network for images of 28×28 pixels. `ddp.py` defines the same network.
fn cnn(root: &nn::Path<'_>, channels: i64) -> nn::Sequential {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq()
        .add(nn::conv2d(root / "conv1", 1, channels, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2))
        .add(nn::conv2d(root / "conv2", channels, 2 * channels, 3, same))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flat_view())
        .add(nn::linear(root / "fc", 2 * channels * 7 * 7, 10, Default::default()))
}

fn random_batch(rows: i64) -> (Tensor, Tensor) {
    let inputs = Tensor::randn([rows, 1, 28, 28], (Kind::Float, Device::Cpu));
    (inputs, Tensor::randint(10, [rows], (Kind::Int64, Device::Cpu)))
}

/// Returns a loader that yields the same batch of this rank `count` times.
fn repeated(batch: &(Tensor, Tensor), count: i64) -> impl Loader<(Tensor, Tensor)> {
    let (inputs, labels) = (batch.0.shallow_clone(), batch.1.shallow_clone());
    from_fn(move |_| {
        let batch = (inputs.shallow_clone(), labels.shallow_clone());
        (0..count).map(move |_| (batch.0.shallow_clone(), batch.1.shallow_clone()))
    })
    .per_rank()
}

/// Returns the part of a batch that a rank processes.
fn share((inputs, labels): &(Tensor, Tensor), world: &World) -> (Tensor, Tensor) {
    let rows = inputs.size()[0] / i64::from(world.size());
    let rank = i64::from(world.rank());
    (inputs.narrow(0, rank * rows, rows), labels.narrow(0, rank * rows, rows))
}

/// Trains a network on the data and with the weights in the folder. Returns the time of a step.
fn train_cnn(folder: &Path) -> Times {
    let data = Tensor::read_safetensors(folder.join("data.safetensors")).expect("written");
    let find = |name: &str| {
        let found = data.iter().find(|(own, _)| own == name).expect("written");
        found.1.shallow_clone()
    };
    let world = World::from_env().expect("the launcher's variables are valid");
    let batch = share(&(find("inputs"), find("labels")), &world);
    let mut vars = nn::VarStore::new(Device::Cpu);
    let net = cnn(&vars.root(), 16);
    vars.load(folder.join("weights.safetensors")).expect("written");
    let builder = Trainer::builder(Supervised::new(vars, net, cross_entropy));
    fitted(builder.optimizer(AdamW::new(1e-3).weight_decay(0.01)))(&batch, STEPS)
}

/// Trains a network with a trainer and by hand with the same reducer, in interleaved rounds.
/// Returns the times of both in each round.
fn against_by_hand() -> Vec<(Times, Times)> {
    let world = World::from_env().expect("the launcher's variables are valid");
    tch::manual_seed(1);
    let batch = share(&random_batch(BATCH), &world);
    let channels = 8;
    let vars = nn::VarStore::new(Device::Cpu);
    let net = cnn(&vars.root(), channels);
    let builder = Trainer::builder(Supervised::new(vars, net, cross_entropy));
    let mut ours = fitted(builder.optimizer(Sgd::new(1e-3)));
    let vars = nn::VarStore::new(Device::Cpu);
    let net = cnn(&vars.root(), channels);
    let mut optimizer = nn::Sgd::default().build(&vars, 1e-3).expect("tch builds its own optimizer");
    let params: Vec<(String, Tensor)> = vars.variables().into_iter().collect();
    let mut params: Vec<(&str, &Tensor)> =
        params.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    params.sort_by_key(|(name, _)| *name);
    let reducer = Reducer::new(&world, params, 25 << 20, false).expect("the same on both ranks");
    let gradients = vars.trainable_variables();
    let mut by_hand = |steps: i64| {
        let mut sum = 0.0;
        for _ in 0..steps {
            let loss = cross_entropy(&batch.0.apply(&net), &batch.1);
            // The optimizer would drop the gradients, which are views of the reducer's memory.
            for mut grad in gradients.iter().map(|var| var.grad()).filter(Tensor::defined) {
                let _ = grad.zero_();
            }
            reducer.prepare(&loss).expect("all gradients exist");
            loss.backward();
            reducer.check().expect("all gradients exist");
            optimizer.step();
            sum += loss.double_value(&[]);
        }
        std::hint::black_box(sum);
    };
    by_hand(WARM_UP);
    let rounds = (0..PAIRS).map(|_| {
        world.barrier("round").expect("both ranks are alive");
        let ours = ours(&batch, STEPS);
        world.barrier("round").expect("both ranks are alive");
        (ours, timed(STEPS, || by_hand(STEPS)))
    });
    rounds.collect()
}

/// Trains a network that is so small that the overhead of the loop is measurable. Returns the time
/// of a step.
fn train_mlp() -> Times {
    fitted(Trainer::builder(mlp::task()).optimizer(Sgd::new(1e-3)))(&mlp::batch(), 200 * STEPS)
}

/// Starts this program with a scene in `size` processes, and returns their times.
fn ranks<R: for<'de> Deserialize<'de>>(
    folder: &Path,
    scene: &str,
    size: u32,
    vars: &[(&str, &str)],
) -> Vec<R> {
    let meeting = folder.join("meeting");
    let _ = fs::remove_file(&meeting);
    let start = |rank: u32| {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.env(SCENE, scene).env(FOLDER, folder).stdout(Stdio::piped()).envs(vars.iter().copied());
        if size > 1 {
            let address = format!("file://{}", meeting.display());
            command.env("WORLD_SIZE", size.to_string()).env("RANK", rank.to_string());
            command.env("MASTER_ADDR", address);
        }
        command.spawn().expect("this program starts")
    };
    let children: Vec<Child> = (0..size).map(start).collect();
    let times = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("it ends");
        serde_json::from_slice(&output.stdout).expect("it prints its times")
    });
    times.collect()
}

/// Runs a scene in this process, and prints the times.
fn run(scene: &str) {
    tch::set_num_threads(1);
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("set with the scene"));
    let text = match scene {
        "cnn" => serde_json::to_string(&train_cnn(&folder)),
        "by_hand" => serde_json::to_string(&against_by_hand()),
        _ => serde_json::to_string(&train_mlp()),
    };
    println!("{}", text.expect("numbers"));
}

/// Returns the times of `size` processes of PyTorch or of Lightning, or `None` if
/// `TRAINER_INTEROP` is not set.
fn theirs(folder: &Path, framework: &str, size: u32, images: i64) -> Option<Vec<Times>> {
    let python = std::env::var_os("TRAINER_INTEROP")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/interop/ddp.py");
    let config = serde_json::json!({
        "framework": framework,
        "optimizer": "adamw",
        "batch": images,
        "passes": WARM_UP + STEPS, // one batch each
        "warm_up": WARM_UP,
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let mut command = Command::new(python);
    // Python must load its own libtorch, not that of this program.
    command.env_remove("LD_LIBRARY_PATH").env("OMP_NUM_THREADS", "1").env("PYTHONWARNINGS", "ignore");
    command.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", &size.to_string()]);
    let output = command.arg(script).arg(folder).output().expect("Python starts");
    assert!(output.status.success(), "ddp.py fails: {}", String::from_utf8_lossy(&output.stderr));
    let times = |rank: u32| {
        let text = fs::read_to_string(folder.join(format!("ddp-{rank}.json"))).expect("written");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let number = |name: &str| json[name].as_f64().expect("a number");
        Times { wall: number("seconds"), processor: number("processor_seconds") }
    };
    Some((0..size).map(times).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn median_times(all: &[Times]) -> Times {
    Times {
        wall: median(all.iter().map(|it| it.wall).collect()),
        processor: median(all.iter().map(|it| it.processor).collect()),
    }
}

/// Prints a row below `title`. As a JSON line, it has the processor times.
fn row(title: &str, name: &str, times: Times, ratio: Times) {
    println!(
        "  {name:<44} {:>9.3} ms  {:>6.3} ×   processor {:>9.3} ms a rank  {:>6.3} ×",
        1e3 * times.wall,
        ratio.wall,
        1e3 * times.processor,
        ratio.processor
    );
    record(title, name, times.processor * 1e9, ratio.processor);
}

/// Measures one and two processes beside PyTorch's and Lightning's, with batches of this many
/// images.
fn against_others(folder: &Path, images: i64) {
    let (inputs, labels) = random_batch(images);
    let data = [("inputs", &inputs), ("labels", &labels)];
    Tensor::write_safetensors(&data, folder.join("data.safetensors")).expect("written");
    let vars = nn::VarStore::new(Device::Cpu);
    cnn(&vars.root(), 16);
    vars.save(folder.join("weights.safetensors")).expect("written");
    for size in [1, 2] {
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            all[0].push(slowest(&ranks(folder, "cnn", size, &[])));
            for (framework, times) in ["pytorch", "lightning"].into_iter().zip(&mut all[1..]) {
                times.extend(theirs(folder, framework, size, images).map(|ranks| slowest(&ranks)));
            }
        }
        let title =
            format!("a step of a CNN on {images} images, one thread in each process, processes: {size}");
        println!("\n{title}; ratios are medians of those within a round");
        let [ours, pytorch, _] = &all;
        let base = if pytorch.is_empty() { ours } else { pytorch };
        for (name, times) in ["trainer", "PyTorch's DDP", "Lightning's DDP"].into_iter().zip(&all) {
            if times.is_empty() {
                println!("  {name}: not measured, because TRAINER_INTEROP is not set");
                continue;
            }
            let ratios: Vec<Times> = times.iter().zip(base).map(|(own, base)| own.over(*base)).collect();
            row(&title, name, median_times(times), median_times(&ratios));
        }
    }
}

/// Returns the largest times of the ranks.
fn slowest(ranks: &[Times]) -> Times {
    let largest = |time: fn(&Times) -> f64| ranks.iter().map(time).fold(0.0, f64::max);
    Times { wall: largest(|it| it.wall), processor: largest(|it| it.processor) }
}

fn main() {
    if let Ok(scene) = std::env::var(SCENE) {
        return run(&scene);
    }
    tch::manual_seed(1);
    let folder = std::env::temp_dir().join(format!("trainer-bench-ranks-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");

    // On a core of 2026, a step of one process takes about 5, 15 and 60 ms.
    for images in [12, 36, 144] {
        against_others(&folder, images);
    }

    let both: Vec<Vec<(Times, Times)>> = ranks(&folder, "by_hand", 2, &[]);
    let (ours, by_hand): (Vec<Times>, Vec<Times>) = both.iter().flatten().copied().unzip();
    let title = format!("a step of a smaller CNN on {BATCH} images, two processes");
    println!("\n{title}; ratios are medians of those within a round");
    // The ratio within a round does not depend on other load of the machine.
    let unit = Times { wall: 1.0, processor: 1.0 };
    let ratios: Vec<Times> = ours.iter().zip(&by_hand).map(|(own, base)| own.over(*base)).collect();
    row(&title, "tch by hand, the same reducer", median_times(&by_hand), unit);
    row(&title, "trainer", median_times(&ours), median_times(&ratios));

    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        all[0].extend(ranks::<Times>(&folder, "mlp", 1, &[]));
        all[1].extend(ranks::<Times>(&folder, "mlp", 1, &[("WORLD_SIZE", "1"), ("RANK", "0")]));
    }
    let title = "a step of an MLP 64→32→10, one process";
    println!("\n{title}");
    let none = median_times(&all[0]);
    row(title, "no variables of a launcher", none, none.over(none));
    let with = median_times(&all[1]);
    row(title, "WORLD_SIZE=1", with, with.over(none));
    fs::remove_dir_all(&folder).expect("removed");
}
