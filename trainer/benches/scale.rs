//! Measures what ranks need to agree: starts this program in 2 to 64 processes that exchange only
//! control messages, fits how the cost grows, and prints what follows for 512 and 4,096 ranks.
//!
//! `make scale` runs it. Each figure is of one rank: the mean of all, or the largest where it says
//! so. The processor time includes all threads of a rank, and does not depend much on how many ranks
//! share a core; the time to join does, because all of them start at once. The number of files
//! includes three of the process. Rank 0 serves the store, as without torchrun: it has a connection
//! to each rank. The extrapolated rows are a model and were not measured.

#![allow(missing_docs, clippy::disallowed_macros, clippy::disallowed_methods)]

#[path = "ratio/process.rs"]
mod process;

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use trainer::distributed::World;

use process::processor_time;

const SIZES: [u32; 7] = [2, 4, 8, 16, 32, 48, 64];
const EXTRAPOLATED: [u32; 2] = [512, 4096];

/// The environment variable that a process of a measurement has.
const CHILD: &str = "TRAINER_SCALE";

/// The numbers of exchanges, and of gatherings of names.
const EXCHANGES: u32 = 300;
const GATHERINGS: u32 = 5;

/// The measurements of one rank.
#[derive(Debug, Deserialize, Serialize)]
struct Measured {
    rank: u32,
    /// The time to join, and the processor time of it, in seconds.
    join: f64,
    join_processor: f64,
    /// The processor time and the wall-clock time of an exchange, in seconds.
    exchange_processor: f64,
    exchange: f64,
    /// The processor time of gathering the names of 30 metrics, in seconds.
    gather_processor: f64,
    descriptors: usize,
    /// The bytes that all ranks sent over the loopback interface in an exchange.
    bytes: f64,
}

/// The bytes that all processes have sent over the loopback interface, with their headers.
fn sent() -> f64 {
    let text = fs::read_to_string("/proc/net/dev").expect("Linux reports it");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).expect("it has this line");
    line.split_whitespace().nth(8).and_then(|bytes| bytes.parse().ok()).expect("the ninth column")
}

/// Runs one rank, and prints what it measured.
fn measure() {
    tch::set_num_threads(1);
    let (started, processor) = (Instant::now(), processor_time());
    let world = World::from_env().expect("the launcher's variables are valid");
    world.barrier("join").expect("all ranks are alive");
    let join = started.elapsed().as_secs_f64();
    let join_processor = processor_time() - processor;

    for _ in 0..EXCHANGES / 4 {
        world.any("warm-up", false).expect("all ranks are alive");
    }
    let (started, processor, bytes) = (Instant::now(), processor_time(), sent());
    for _ in 0..EXCHANGES {
        world.any("exchange", false).expect("all ranks are alive");
    }
    let per = |total: f64| total / f64::from(EXCHANGES);
    let exchange = per(started.elapsed().as_secs_f64());
    let exchange_processor = per(processor_time() - processor);
    let bytes = per(sent() - bytes);

    let names: Vec<String> = (0..30).map(|nth| format!("metric number {nth}")).collect();
    let processor = processor_time();
    for _ in 0..GATHERINGS {
        world.gather("names", &names).expect("all ranks are alive");
    }
    let gather_processor = (processor_time() - processor) / f64::from(GATHERINGS);
    let descriptors = fs::read_dir("/proc/self/fd").expect("Linux reports it").count();
    let rank = world.rank();
    world.barrier("end").expect("all ranks are alive");
    let measured = Measured {
        rank,
        join,
        join_processor,
        exchange_processor,
        exchange,
        gather_processor,
        descriptors,
        bytes,
    };
    println!("{}", serde_json::to_string(&measured).expect("numbers"));
}

/// Starts this program in `size` processes, and returns what each measured.
fn ranks(size: u32) -> Vec<Measured> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    drop(listener);
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(CHILD, "1").env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("OMP_NUM_THREADS", "1").stdout(Stdio::piped()).spawn().expect("this program starts")
    };
    let children: Vec<_> = (0..size).map(start).collect();
    let measured = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("it ends");
        serde_json::from_slice(&output.stdout).expect("it prints what it measured")
    });
    measured.collect()
}

/// A row of the table.
struct Row {
    ranks: f64,
    /// In the order of the columns.
    numbers: [f64; 8],
}

/// How a column grows with the number of ranks.
#[derive(Clone, Copy)]
enum Growth {
    Logarithm,
    Linear,
}

const COLUMNS: [(&str, Growth); 8] = [
    ("processor, µs", Growth::Logarithm),
    ("largest, µs", Growth::Logarithm),
    ("bytes", Growth::Logarithm),
    ("files, rank 0", Growth::Linear),
    ("files, others", Growth::Logarithm),
    ("join, s", Growth::Linear),
    ("join, processor, ms", Growth::Linear),
    ("names, ms", Growth::Linear),
];

fn row(size: u32) -> Row {
    let all = ranks(size);
    let mean = |of: fn(&Measured) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let most = |of: fn(&Measured) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let numbers = [
        1e6 * mean(|own| own.exchange_processor),
        1e6 * most(|own| own.exchange_processor),
        mean(|own| own.bytes) / f64::from(size),
        most(|own| if own.rank == 0 { own.descriptors as f64 } else { 0.0 }),
        most(|own| if own.rank == 0 { 0.0 } else { own.descriptors as f64 }),
        most(|own| own.join),
        1e3 * mean(|own| own.join_processor),
        1e3 * mean(|own| own.gather_processor),
    ];
    Row { ranks: f64::from(size), numbers }
}

/// Fits `a + b · x` to points by least squares, and returns its value at `x`.
fn fitted(points: &[(f64, f64)], x: f64) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let of = |with: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(with).sum::<f64>();
    let slope = of(&|(x, y)| (x - mean_x) * (y - mean_y)) / of(&|(x, _)| (x - mean_x).powi(2));
    mean_y + slope * (x - mean_x)
}

fn print(row: &Row, note: &str) {
    let cells: String = row.numbers.iter().map(|number| format!(" {number:>12.1} |")).collect();
    println!("| {:>5} |{cells} {note} |", row.ranks);
}

fn main() {
    if std::env::var_os(CHILD).is_some() {
        return measure();
    }
    let names: String = COLUMNS.iter().map(|(name, _)| format!(" {name:>12} |")).collect();
    println!("| ranks |{names} |\n|---|{}---|", "---|".repeat(COLUMNS.len()));
    let mut rows = Vec::new();
    for size in SIZES {
        let row = row(size);
        print(&row, "measured");
        rows.push(row);
    }
    for size in EXTRAPOLATED {
        let ranks = f64::from(size);
        let numbers = std::array::from_fn(|nth| {
            let of = |ranks: f64| match COLUMNS[nth].1 {
                Growth::Logarithm => ranks.log2(),
                Growth::Linear => ranks,
            };
            let points: Vec<_> = rows.iter().map(|row| (of(row.ranks), row.numbers[nth])).collect();
            fitted(&points, of(ranks))
        });
        print(&Row { ranks, numbers }, "extrapolated");
    }
}
