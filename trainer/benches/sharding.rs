//! Measures what the stages of sharding need on two and four ranks, beside PyTorch's DDP and FSDP2:
//! the memory of tensors, the bytes that a rank sends, and the processor time of a step.
//!
//! The program starts itself for each process. The model is a GPT of 84 MB (P), trained with AdamW
//! in f32 on the CPU with gloo, on 128 tokens a rank. `between` is the memory between two steps,
//! and `backward` that after a backward pass.
//!
//! The comparison with PyTorch needs a Python with torch in `TRAINER_INTEROP` and a C++ compiler.

#![allow(missing_docs, clippy::disallowed_macros, clippy::disallowed_methods)]

#[path = "ratio/process.rs"]
mod process;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use trainer::data::from_fn;
use trainer::optim::Sharded;
use trainer::prelude::*;
use trainer::testing::peak_memory;

use process::processor_time;

/// The environment variable with what a process measures: a stage and a moment.
const SCENE: &str = "TRAINER_BENCH_SCENE";

const WIDTH: i64 = 512;
const WORDS: i64 = 4096;
const LENGTH: i64 = 128;
const STEPS: u64 = 20;
/// The steps after which a rank counts what it sends and the time.
const WARM_UP: u64 = 4;
/// The rounds in which the contestants take turns.
const ROUNDS: usize = 3;
/// The bytes of a tensor that is never written, so that it needs no memory of the machine:
/// allocated at a moment, it makes that moment the peak.
const MARK: i64 = 1 << 30;

struct Block {
    norms: [nn::LayerNorm; 2],
    layers: [nn::Linear; 4],
}

/// A GPT whose head is its embedding.
struct Gpt {
    vars: nn::VarStore,
    embedding: nn::Embedding,
    blocks: Vec<Block>,
}

impl Gpt {
    fn new() -> Self {
        let vars = nn::VarStore::new(Device::Cpu);
        let root = vars.root();
        let embedding = nn::embedding(&root / "embedding", WORDS, WIDTH, Default::default());
        let blocks = (0..6).map(|nth| {
            let at = &root / "blocks" / nth;
            let norm = |name: &str| nn::layer_norm(&at / name, vec![WIDTH], Default::default());
            let layer = |name: &str, from, to| nn::linear(&at / name, from, to, Default::default());
            Block {
                norms: [norm("norm1"), norm("norm2")],
                layers: [
                    layer("qkv", WIDTH, 3 * WIDTH),
                    layer("out", WIDTH, WIDTH),
                    layer("up", WIDTH, 4 * WIDTH),
                    layer("down", 4 * WIDTH, WIDTH),
                ],
            }
        });
        let blocks = blocks.collect();
        Gpt { vars, embedding, blocks }
    }
}

impl Task for Gpt {
    type Batch = Tensor;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, words: &Tensor, _: Mode) -> Result<Tensor> {
        let mut hidden = words.apply(&self.embedding);
        let rows = words.size()[0];
        for Block { norms, layers: [qkv, out, up, down] } in &self.blocks {
            let heads = |it: &Tensor| it.view([rows, LENGTH, 8, WIDTH / 8]).transpose(1, 2);
            let parts = hidden.apply(&norms[0]).apply(qkv).chunk(3, -1);
            let [q, k, v] = [0, 1, 2].map(|nth| heads(&parts[nth].contiguous()));
            let mixed =
                Tensor::scaled_dot_product_attention::<Tensor>(&q, &k, &v, None, 0.0, true, None, false);
            hidden = &hidden + mixed.transpose(1, 2).reshape([rows, LENGTH, WIDTH]).apply(out);
            hidden = &hidden + hidden.apply(&norms[1]).apply(up).gelu("none").apply(down);
        }
        Ok(hidden.matmul(&self.embedding.ws.tr()))
    }
    fn loss(&mut self, logits: &Tensor, words: &Tensor) -> Result<Tensor> {
        Ok(logits.view([-1, WORDS]).cross_entropy_for_logits(&words.roll([1], [1]).view([-1])))
    }
}

/// What a rank has measured, in bytes and seconds.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
struct Measured {
    parameters: u64,
    peak: u64,
    sent: u64,
    processor: f64,
}

/// The number that a line of a file in `/proc/self` has.
fn number(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).expect("Linux has it");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("Linux has it");
    line.trim().parse().expect("a number")
}

/// Trains in a stage, and measures the peak, with a mark at a moment.
fn measure(stage: &str, moment: &str) -> Result<Measured> {
    tch::set_num_threads(1);
    let measured = Arc::new(Mutex::new(Measured::default()));
    let own = Arc::clone(&measured);
    let [between, backward] = ["between", "backward"].map(|name| name == moment);
    let mark = || drop(Tensor::empty([MARK], (Kind::Uint8, Device::Cpu)));
    let steps = if moment == "time" { STEPS } else { WARM_UP + 2 };
    let fit = || -> Result<()> {
        let task = Gpt::new();
        let of_task: usize = task.vars.trainable_variables().iter().map(|var| var.numel() * 4).sum();
        own.lock().expect("not poisoned").parameters = of_task as u64;
        let adam = || AdamW::new(1e-3);
        let optimizer: Box<dyn Optimizer> = match stage {
            "0" => Box::new(adam()),
            "1" => Box::new(Sharded::new(adam())),
            _ => Box::new(Sharded::new(adam()).gradients(true)),
        };
        let times = Arc::clone(&own);
        let mut trainer = Trainer::builder(task)
            .optimizer(optimizer)
            .discover(Discover::None)
            .max_steps(steps)
            .on::<AfterBackward>("backward", move |cx| {
                if backward && cx.counters().batches_seen >= WARM_UP {
                    mark();
                }
            })
            .on::<BeforeStep>("between", move |cx| {
                let done = cx.counters().batches_seen;
                if between && done >= WARM_UP {
                    mark();
                }
                if done == WARM_UP {
                    let mut times = times.lock().expect("not poisoned");
                    times.sent = number("/proc/self/io", "wchar:");
                    times.processor = processor_time();
                }
            })
            .build()?;
        let rows: i64 = std::env::var("WORLD_SIZE").ok().and_then(|size| size.parse().ok()).unwrap_or(1);
        let words = move |nth: i64| Tensor::arange(rows * LENGTH, (Kind::Int64, Device::Cpu)) * 7 + nth;
        let batches = move |_| (0..64).map(move |nth| words(nth).remainder(WORDS).view([rows, LENGTH]));
        trainer.fit(&mut from_fn(batches).deterministic(true).sliced(), None)?;
        let mut own = own.lock().expect("not poisoned");
        let counted = (steps - WARM_UP) as f64;
        own.sent = ((number("/proc/self/io", "wchar:") - own.sent) as f64 / counted) as u64;
        own.processor = (processor_time() - own.processor) / counted;
        Ok(())
    };
    let (result, peak) = peak_memory(fit)?;
    result?;
    let mut measured = measured.lock().expect("not poisoned");
    measured.peak = if between || backward { peak - MARK as u64 } else { peak };
    Ok(*measured)
}

/// What trains, and the name that its process gets.
const CONTESTANTS: [(&str, &str); 6] = [
    ("stage 0", "0"),
    ("stage 1", "1"),
    ("stage 2", "2"),
    ("PyTorch's DDP", "ddp"),
    ("FSDP2", "fsdp2"),
    ("FSDP2, no reshard", "fsdp2-whole"),
];

/// Returns the Python script, with the interpreter that `TRAINER_INTEROP` names.
fn script() -> Option<Command> {
    let mut command = Command::new(std::env::var_os("TRAINER_INTEROP")?);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/interop/sharding.py"));
    // Python must load its own libtorch, not that of this program.
    command.env_remove("LD_LIBRARY_PATH");
    Some(command)
}

/// Starts `size` processes of a contestant, and returns what each has measured, or `None` if there
/// is no Python.
fn ranks(size: u32, stage: &str, moment: &str) -> Option<Vec<Measured>> {
    let meeting = std::env::temp_dir().join(format!("trainer-sharding-{}", std::process::id()));
    let _ = fs::remove_file(&meeting);
    let address = format!("file://{}", Path::new(&meeting).display());
    let start = |rank: u32| {
        let mut command = if stage.starts_with(char::is_numeric) {
            Command::new(std::env::current_exe().expect("this program"))
        } else {
            script()?
        };
        command.args([stage, moment, &address]).env(SCENE, format!("{stage} {moment}"));
        command
            .env("WORLD_SIZE", size.to_string())
            .env("RANK", rank.to_string())
            .env("MASTER_ADDR", &address);
        Some(command.stdout(Stdio::piped()).spawn().expect("the program starts"))
    };
    let children: Vec<Child> = (0..size).map(start).collect::<Option<_>>()?;
    let measured = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("it ends");
        serde_json::from_slice(&output.stdout).expect("it prints what it has measured")
    });
    let measured = measured.collect();
    let _ = fs::remove_file(&meeting);
    Some(measured)
}

/// Returns the peak of the fullest rank, in P.
fn peak(measured: &[Measured]) -> f64 {
    measured.iter().map(|own| own.peak).max().unwrap_or(0) as f64 / measured[0].parameters as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    if let Ok(scene) = std::env::var(SCENE) {
        let (stage, moment) = scene.split_once(' ').expect("a stage and a moment");
        let measured = measure(stage, moment).expect("it trains");
        println!("{}", serde_json::to_string(&measured).expect("numbers"));
        return;
    }
    match script().map(|mut script| script.arg("compile").status().expect("Python starts").success()) {
        None => println!("PyTorch: not measured, because TRAINER_INTEROP is not set"),
        Some(is_compiled) => assert!(is_compiled, "the counter of memory compiles"),
    }
    println!(
        "sharding: in P, the bytes of the parameters, on the fullest rank; sent by each rank in a step; processor \
         time of a step, and the median of its ratios to stage 1 in the same round"
    );
    for size in [2, 4] {
        let mut times = [const { Vec::new() }; CONTESTANTS.len()];
        for _ in 0..ROUNDS {
            for ((_, stage), times) in CONTESTANTS.iter().zip(&mut times) {
                times.extend(ranks(size, stage, "time"));
            }
        }
        for ((name, stage), own) in CONTESTANTS.iter().zip(&times).filter(|(_, times)| !times.is_empty()) {
            let at = ["between", "backward", "peak"]
                .map(|moment| ranks(size, stage, moment).map_or(f64::NAN, |measured| peak(&measured)));
            let mean = |ranks: &Vec<Measured>, of: fn(&Measured) -> f64| {
                ranks.iter().map(of).sum::<f64>() / f64::from(size)
            };
            let processor = |rounds: &[Vec<Measured>]| -> Vec<f64> {
                rounds.iter().map(|ranks| mean(ranks, |own| own.processor)).collect()
            };
            let ratios =
                processor(own).into_iter().zip(processor(&times[1])).map(|(own, base)| own / base).collect();
            println!(
                "  N = {size}, {name:<18} between {:.2}, backward {:.2}, peak {:.2}, sent {:.2}, processor {:6.1} ms ({:.2} x)",
                at[0],
                at[1],
                at[2],
                mean(&own[0], |own| own.sent as f64 / own.parameters as f64),
                1e3 * median(processor(own)),
                median(ratios)
            );
        }
    }
}
