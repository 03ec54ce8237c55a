//! Reads shards for `scripts/bench_data.py`, which compares this with other loaders, and prints
//! what it measured as JSON.

#![allow(missing_docs)]

use std::time::{Duration, Instant};

use trainer::data::{Collate, Parquet, Sample, Shards, TokenFile};
use trainer::prelude::*;

const BATCH: usize = 64;

/// A row of the parquet files.
#[derive(Clone, serde::Deserialize)]
struct Row {
    image: Vec<u8>,
    label: i64,
}

/// Reads for some seconds, or to the end of the epoch.
fn read<D: Dataset<Row: Collate>>(
    dataset: D,
    opened: Instant,
    workers: usize,
    start: f64,
    seconds: f64,
) -> Result<()> {
    let open = opened.elapsed();
    let mut loader = DataLoader::new(dataset).batch_size(BATCH).shuffle(42).workers(workers);
    let batches = loader.len().unwrap_or(0);
    let start = (batches as f64 * start) as u64;
    let mut passes = loader.batches(1, start)?;
    let mut count = 0_usize;
    let mut first = None;
    while first.is_none_or(|(_, at): (Duration, Instant)| at.elapsed().as_secs_f64() < seconds)
        && let Some(batch) = passes.next()
    {
        drop(batch?);
        count += 1;
        first.get_or_insert_with(|| (opened.elapsed(), Instant::now()));
    }
    let (first, since) = first.ok_or_else(|| Error::msg("there are no batches"))?;
    let rate = ((count - 1) * BATCH) as f64 / since.elapsed().as_secs_f64();
    trainer::print_line(format!(
        "{{\"open\": {}, \"first\": {}, \"rate\": {rate}}}",
        open.as_secs_f64(),
        first.as_secs_f64()
    ));
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [format, path, workers, start, seconds] = arguments[..] else {
        return Err(Error::msg("expected the arguments: tar|parquet|tokens PATH WORKERS START SECONDS"));
    };
    let number = |text: &str| text.parse::<f64>().map_err(Error::new);
    let (workers, start, seconds) = (number(workers)? as usize, number(start)?, number(seconds)?);
    let opened = Instant::now();
    match format {
        "tar" => {
            let samples = Shards::tar([path])?.map(|sample: Sample, _| {
                let label: i64 = sample.text("cls")?.trim().parse().map_err(Error::new)?;
                Ok((Tensor::from_slice(sample.part("bin")?), label))
            });
            read(samples, opened, workers, start, seconds)
        }
        "parquet" => {
            let rows: Shards<Parquet<Row>> = Shards::parquet([path])?;
            let rows = rows.map(|row, _| Ok((row.image, row.label)));
            read(rows, opened, workers, start, seconds)
        }
        "tokens" => read(TokenFile::u16(path)?.sequence(4096), opened, workers, start, seconds),
        other => Err(Error::msg(format!("unknown format {other:?}: expected tar, parquet or tokens"))),
    }
}
