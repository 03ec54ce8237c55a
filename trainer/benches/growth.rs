//! Measures one cost for `scripts/growth.py`, which `make growth` runs: how what grows with a run
//! depends on its size. Prints the processor time in seconds, the wall-clock time in seconds, and
//! by how many bytes the largest memory exceeded that before.

#![allow(missing_docs, clippy::disallowed_macros, clippy::disallowed_methods)]

#[path = "ratio/process.rs"]
mod process;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs};

use parquet::data_type::Int64Type;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Deserialize;
use trainer::TrainerBuilder;
use trainer::checkpoint::{SettingList, Settings};
use trainer::data::{Parquet, Shards, TokenFile, from_fn};
use trainer::hooks::Checkpoint;
use trainer::loggers::{Csv, JsonLines};
use trainer::prelude::*;

use process::processor_time;

/// What is measured, and what is prepared before in another process, so that it does not count.
struct Line {
    name: &'static str,
    prepare: fn(usize, &Path) -> Result<()>,
    measure: fn(usize, &Path) -> Result<Cost>,
}

const NOTHING: fn(usize, &Path) -> Result<()> = |_, _| Ok(());

const LINES: &[Line] = &[
    Line { name: "names", prepare: NOTHING, measure: names },
    Line { name: "hooks", prepare: NOTHING, measure: hooks },
    Line { name: "tensors", prepare: save_tensors, measure: resume_tensors },
    Line { name: "epochs", prepare: save_epochs, measure: resume_epochs },
    Line { name: "csv", prepare: NOTHING, measure: csv },
    Line { name: "json-lines", prepare: NOTHING, measure: json_lines },
    Line { name: "tar", prepare: write_tar, measure: read_tar },
    Line { name: "parquet", prepare: write_parquet, measure: read_parquet },
    Line { name: "tokens", prepare: write_tokens, measure: read_tokens },
    Line { name: "save", prepare: NOTHING, measure: save_megabytes },
    Line { name: "resume", prepare: write_megabytes, measure: resume_megabytes },
];

struct Cost {
    processor: f64,
    wall: f64,
    memory: f64,
}

/// A size in `/proc/self/status`, in bytes.
fn status(key: &str) -> f64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux reports it");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("it has this line");
    let number = line.trim_matches(|letter: char| !letter.is_ascii_digit());
    1024.0 * number.parse::<f64>().expect("a number of kilobytes")
}

fn cost(work: impl FnOnce() -> Result<()>) -> Result<Cost> {
    let (memory, processor, began) = (status("VmRSS"), processor_time(), Instant::now());
    work()?;
    let (wall, processor) = (began.elapsed().as_secs_f64(), processor_time() - processor);
    Ok(Cost { processor, wall, memory: status("VmHWM") - memory })
}

/// A task with variables that its forward pass does not use, except for one scalar.
struct Idle(nn::VarStore, Tensor);

impl Idle {
    /// Creates a task with this number of tensors of a number of elements.
    fn new(tensors: usize, elements: i64) -> Self {
        let vs = nn::VarStore::new(Device::Cpu);
        let scalar = vs.root().var("scalar", &[], nn::Init::Const(1.0));
        for nth in 0..tensors {
            let _ = (vs.root() / "layer" / nth).var("weight", &[elements], nn::Init::Const(0.5));
        }
        Idle(vs, scalar)
    }
}

impl Task for Idle {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(batch * &self.1)
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.mean(Kind::Float))
    }
}

fn batches(count: usize) -> impl Loader<Tensor> {
    from_fn(move |_| (0..count).map(|_| Tensor::ones([2], (Kind::Float, Device::Cpu)))).deterministic(true)
}

fn builder(task: Idle) -> TrainerBuilder<Idle> {
    Trainer::builder(task).discover(Discover::None).optimizer(Sgd::new(1e-3))
}

/// A hook logs this number of names in each of two batches.
fn names(count: usize, _: &Path) -> Result<Cost> {
    let mut trainer = logging(Idle::new(1, 1), count).build()?;
    cost(|| trainer.fit(&mut batches(2), None).map(drop))
}

fn logging(task: Idle, count: usize) -> TrainerBuilder<Idle> {
    let names: Vec<String> = (0..count).map(|nth| format!("group/value{nth}")).collect();
    builder(task).on::<AfterStep>("values", move |cx| names.iter().for_each(|name| cx.log(name, 1.0)))
}

/// A hook with a setting.
struct Counter(u64);

#[hook(settings)]
impl Counter {
    #[hook]
    fn count(&mut self, _: &Cx<AfterStep>) {
        self.0 += 1;
    }
}

impl Settings for Counter {
    fn settings(&self) -> SettingList {
        SettingList::new().with("start", self.0)
    }
}

fn hooks(count: usize, _: &Path) -> Result<Cost> {
    let mut builder = builder(Idle::new(1, 1));
    for nth in 0..count {
        builder = builder.hook(Counter(nth as u64));
    }
    cost(|| builder.build().map(drop))
}

/// Trains for some epochs, and leaves a checkpoint in a folder.
fn save(task: Idle, epochs: u64, metrics: usize, folder: &Path) -> Result<()> {
    let saved = Checkpoint::new(folder).every(Every::Epochs(epochs));
    logging(task, metrics).epochs(epochs).hook(saved).build()?.fit(&mut batches(1), None).map(drop)
}

/// Resumes from the checkpoint, and trains for no further epoch.
fn resume(task: Idle, epochs: u64, metrics: usize, folder: &Path) -> Result<()> {
    let trainer = logging(task, metrics).epochs(epochs).hook(Checkpoint::new(folder)).resume(Resume::Auto);
    trainer.build()?.fit(&mut batches(1), None).map(drop)
}

fn save_tensors(count: usize, folder: &Path) -> Result<()> {
    save(Idle::new(count, 4), 1, 0, folder)
}

fn resume_tensors(count: usize, folder: &Path) -> Result<Cost> {
    let task = Idle::new(count, 4);
    cost(|| resume(task, 1, 0, folder))
}

fn save_epochs(count: usize, folder: &Path) -> Result<()> {
    save(Idle::new(1, 1), count as u64, 20, folder)
}

fn resume_epochs(count: usize, folder: &Path) -> Result<Cost> {
    let task = Idle::new(1, 1);
    cost(|| resume(task, count as u64, 20, folder))
}

/// A task with this number of megabytes in 16 tensors.
fn megabytes(size: usize) -> Idle {
    Idle::new(16, (size << 20) as i64 / 4 / 16)
}

fn write_megabytes(size: usize, folder: &Path) -> Result<()> {
    save(megabytes(size), 1, 0, folder)
}

fn save_megabytes(size: usize, folder: &Path) -> Result<Cost> {
    let task = megabytes(size);
    cost(|| save(task, 1, 0, folder))
}

fn resume_megabytes(size: usize, folder: &Path) -> Result<Cost> {
    let task = megabytes(size);
    cost(|| resume(task, 1, 0, folder))
}

/// A logger receives this number of values in records of 20 values each, one for each step.
fn logged(count: usize, builder: TrainerBuilder<Idle>) -> Result<Cost> {
    let mut trainer = builder.record_every(Every::Steps(1)).build()?;
    cost(|| trainer.fit(&mut batches(count / 20), None).map(drop))
}

fn csv(count: usize, folder: &Path) -> Result<Cost> {
    logged(count, logging(Idle::new(1, 1), 19).hook(Csv::at(folder.join("values.csv"))))
}

fn json_lines(count: usize, folder: &Path) -> Result<Cost> {
    logged(count, logging(Idle::new(1, 1), 19).hook(JsonLines::at(folder.join("values.jsonl"))))
}

fn write_tar(count: usize, folder: &Path) -> Result<()> {
    // A header of 512 bytes for each part of a row, and the part in a block of 512 bytes.
    let mut bytes = Vec::new();
    for nth in 0..count {
        for (extension, content) in [("bin", vec![7; 256]), ("cls", b"3".to_vec())] {
            let mut header = tar_header(&format!("{nth:09}.{extension}"), content.len());
            bytes.append(&mut header);
            bytes.extend(content);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
    }
    bytes.resize(bytes.len() + 1024, 0);
    Ok(fs::write(folder.join("rows.tar"), bytes)?)
}

fn tar_header(name: &str, length: usize) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644");
    put(124, &format!("{length:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

fn read_all<B: Batch>(mut loader: impl Loader<B>) -> Result<()> {
    loader.batches(0, 0)?.try_for_each(|batch| batch.map(drop))
}

fn read_tar(_: usize, folder: &Path) -> Result<Cost> {
    cost(|| {
        let samples = Shards::tar([folder.join("rows.tar")])?.map(|sample: trainer::data::Sample, _| {
            let label: i64 = sample.text("cls")?.trim().parse().map_err(Error::new)?;
            Ok((Tensor::from_slice(sample.part("bin")?), label))
        });
        read_all(DataLoader::new(samples).batch_size(64).shuffle(42))
    })
}

#[derive(Clone, Deserialize)]
struct Labeled {
    label: i64,
}

fn write_parquet(count: usize, folder: &Path) -> Result<()> {
    let schema = parse_message_type("message rows { required int64 label; }").map_err(Error::new)?;
    let file = fs::File::create(folder.join("rows.parquet"))?;
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).map_err(Error::new)?;
    let labels: Vec<i64> = (0..count as i64).collect();
    for labels in labels.chunks(1000) {
        let mut group = writer.next_row_group().map_err(Error::new)?;
        let mut column = group.next_column().map_err(Error::new)?.expect("there is one column");
        column.typed::<Int64Type>().write_batch(labels, None, None).map_err(Error::new)?;
        column.close().map_err(Error::new)?;
        group.close().map_err(Error::new)?;
    }
    writer.close().map(drop).map_err(Error::new)
}

fn read_parquet(_: usize, folder: &Path) -> Result<Cost> {
    cost(|| {
        let rows: Shards<Parquet<Labeled>> = Shards::parquet([folder.join("rows.parquet")])?;
        let labels = rows.map(|row, _| Ok(row.label));
        read_all(DataLoader::new(labels).batch_size(64).shuffle(42))
    })
}

fn write_tokens(count: usize, folder: &Path) -> Result<()> {
    let bytes: Vec<u8> = (0..=count).flat_map(|nth| (nth as u16).to_le_bytes()).collect();
    Ok(fs::write(folder.join("tokens.bin"), bytes)?)
}

fn read_tokens(_: usize, folder: &Path) -> Result<Cost> {
    let tokens = TokenFile::u16(folder.join("tokens.bin"))?;
    cost(|| read_all(DataLoader::new(tokens.sequence(1024)).batch_size(8).shuffle(42)))
}

fn main() -> Result<()> {
    tch::set_num_threads(1);
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [name, size, folder, step] = &arguments[..] else {
        return Err(Error::msg("expected the arguments: LINE SIZE FOLDER prepare|measure"));
    };
    let line = LINES.iter().find(|line| line.name == name).ok_or_else(|| Error::msg("no such line"))?;
    let (size, folder) = (size.parse().map_err(Error::new)?, Path::new(folder));
    if step == "prepare" {
        return (line.prepare)(size, folder);
    }
    let Cost { processor, wall, memory } = (line.measure)(size, folder)?;
    trainer::print_line(format!("{processor} {wall} {memory}"));
    Ok(())
}
