//! An epoch that is streamed, mixed, augmented and packed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use trainer::data::rand::Rng;
use trainer::data::{IGNORED, Mixture, Parquet, RowRng, Sequence, Sequences, Shards, TokenFile};
use trainer::distributed::Share;
use trainer::hooks::Checkpoint;
use trainer::prelude::*;

use super::shards::*;
use crate::support::{Random, exact_state, scratch};

/// Returns shards of both formats and tokens, mixed by weights that change, and augmented.
fn streamed_and_mixed(folder: &Path) -> Mixture<Sequence> {
    let sequence = |text: &str| Sequence::new(text.bytes().map(i64::from).collect());
    let samples = Shards::tar([folder]).unwrap().buffer(20).map(move |sample, rng: &mut RowRng| {
        let length = rng.gen_range(2..6);
        Ok(sequence(&sample.text("txt")?[..length]))
    });
    let documents: Shards<Parquet<TextRow>> = Shards::parquet([folder]).unwrap();
    let documents = documents.buffer(30).map(move |row, _| Ok(sequence(&row.text)));
    let tokens = TokenFile::u16(folder.join("tokens.bin")).unwrap().windows(9, 50);
    Mixture::new()
        .add(samples, 2.0)
        .add_with(documents, |rows| 1.0 + rows as f64 / 500.0)
        .add(tokens, 1.0)
        .rows_per_epoch(2000)
}

/// Returns everything that a batch has, row by row.
fn rows_of(batch: Result<Sequences>) -> Vec<String> {
    let Sequences { tokens, targets, positions, segments } = batch.unwrap();
    let row = |nth| {
        let parts = [&tokens, &targets, &positions, &segments]
            .map(|part| Vec::<i64>::try_from(part.select(0, nth)).unwrap());
        format!("{parts:?}")
    };
    (0..tokens.size()[0]).map(row).collect()
}

#[test]
fn a_streamed_mixed_and_packed_epoch_is_resumed_at_any_batch_and_divided_among_ranks() {
    let folder = scratch("streamed");
    tar_shards(&folder, 100);
    parquet_shards(&folder, 100);
    let tokens: Vec<u8> = (0..1000_u16).flat_map(u16::to_le_bytes).collect();
    fs::write(folder.join("tokens.bin"), tokens).unwrap();
    let mixture = Arc::new(streamed_and_mixed(&folder));
    let loader = |workers| {
        DataLoader::new(Arc::clone(&mixture))
            .batch_size(3)
            .shuffle(7)
            .workers(workers)
            .pack(32)
            .read_ahead(32)
    };
    let epoch = 2;
    let mut whole = loader(0);
    let notes = whole.notes().unwrap();
    let mut positions = Vec::new();
    let mut batches = Vec::new();
    for batch in whole.batches(epoch, 0).unwrap() {
        positions.push(notes.position(batches.len() as u64).unwrap());
        batches.push(rows_of(batch));
    }
    assert!(batches.len() > 100, "{}", batches.len());
    for (start, position) in positions.iter().enumerate() {
        let mut resumed = loader(start % 4);
        resumed.seek(epoch, start as u64, position).unwrap();
        let rest: Vec<_> = resumed.batches(epoch, start as u64).unwrap().take(5).map(rows_of).collect();
        assert_eq!(rest, batches[start..batches.len().min(start + 5)], "from batch {start}");
    }
    for of in [1, 2, 3, 5] {
        let ranks = (0..of).map(|rank| {
            let mut loader = loader(rank as usize % 3);
            loader.share(Share { rank, of }).unwrap();
            let notes = loader.notes().unwrap();
            let own = loader.batches(epoch, 0).unwrap().enumerate().map(|(nth, batch)| {
                let rows = rows_of(batch);
                if notes.is_borrowed(nth as u64) { Vec::new() } else { rows }
            });
            own.collect::<Vec<_>>()
        });
        let ranks: Vec<Vec<Vec<String>>> = ranks.collect();
        for (nth, batch) in batches.iter().enumerate() {
            let together: Vec<String> = ranks.iter().flat_map(|rank| rank[nth].clone()).collect();
            assert_eq!(together, *batch, "batch {nth} on {of} ranks");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A model that predicts each token from the one before.
struct Bigrams {
    vars: nn::VarStore,
    embedding: nn::Embedding,
    output: nn::Linear,
}

impl Bigrams {
    const TOKENS: i64 = 1001;

    fn new() -> Self {
        tch::manual_seed(3);
        let vars = nn::VarStore::new(Device::Cpu);
        let embedding = nn::embedding(&vars.root() / "embedding", Self::TOKENS, 4, Default::default());
        let output = nn::linear(&vars.root() / "output", 4, Self::TOKENS, Default::default());
        Bigrams { vars, embedding, output }
    }
}

impl Task for Bigrams {
    type Batch = Sequences;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Sequences, _: Mode) -> Result<Tensor> {
        Ok(batch.tokens.apply(&self.embedding).apply(&self.output).view([-1, Self::TOKENS]))
    }
    fn loss(&mut self, pred: &Tensor, batch: &Sequences) -> Result<Tensor> {
        let targets = batch.targets.view([-1]);
        Ok(pred.cross_entropy_loss::<Tensor>(&targets, None, Reduction::Mean, IGNORED, 0.0))
    }
    fn weight(&self, batch: &Sequences) -> f64 {
        batch.weight()
    }
}

/// Trains for two epochs, or until `steps` more steps were taken, and adds each batch to `seen`.
/// Returns the state at the end.
fn train(
    folder: &Path,
    mixture: &Arc<Mixture<Sequence>>,
    steps: Option<u64>,
    seen: &Arc<Mutex<BTreeMap<u64, String>>>,
) -> Option<Vec<(String, Vec<u64>)>> {
    let seen = Arc::clone(seen);
    let mut taken = 0;
    let mut trainer = Trainer::builder(Bigrams::new())
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .epochs(2)
        .run_folder(folder)
        .hook(Checkpoint::in_run_folder().every(Every::Steps(7)).keep_last(1))
        .resume(Resume::Auto)
        .observe::<AfterTransfer>("see", move |cx| {
            let Sequences { tokens, targets, positions, segments } = cx.batch::<Sequences>()?;
            let parts = [tokens, targets, positions, segments]
                .map(|part| Vec::<i64>::try_from(part.view([-1])).unwrap());
            let before = seen.lock().unwrap().insert(cx.counters().batches_seen, format!("{parts:?}"));
            // A batch that was interrupted is the same when it is read again.
            assert!(before.is_none_or(|before| before == format!("{parts:?}")));
            Ok(())
        })
        .on::<BeforeStep>("interrupt", move |_| {
            taken += 1;
            if steps.is_some_and(|steps| taken > steps) { Err(Error::msg("interrupted")) } else { Ok(()) }
        })
        .build()
        .unwrap();
    let mut loader =
        DataLoader::new(Arc::clone(mixture)).batch_size(3).shuffle(7).workers(2).pack(32).read_ahead(32);
    match trainer.fit(&mut loader, None) {
        Ok(_) => Some(exact_state(&trainer)),
        Err(error) => {
            assert!(error.to_string().contains("interrupted"), "{error}");
            None
        }
    }
}

#[test]
fn a_run_interrupted_at_random_batches_sees_the_same_batches_and_ends_with_the_same_weights() {
    let folder = scratch("interrupted");
    let shards = folder.join("shards");
    fs::create_dir(&shards).unwrap();
    tar_shards(&shards, 20);
    parquet_shards(&shards, 20);
    let tokens: Vec<u8> = (0..1000_u16).flat_map(u16::to_le_bytes).collect();
    fs::write(shards.join("tokens.bin"), tokens).unwrap();
    let mixture = || Arc::new(streamed_and_mixed(&shards));
    let whole = Arc::default();
    let expected = train(&folder.join("whole"), &mixture(), None, &whole).unwrap();
    let interruptions = std::env::var("TRAINER_SOAK").map_or(6, |count| count.parse().unwrap());
    let mut random = Random(88_172_645_463_325_252);
    let mut done = 0;
    while done < interruptions {
        let seen = Arc::default();
        let run = folder.join(format!("from-{done}"));
        let end = loop {
            let steps = (done < interruptions).then(|| 1 + random.below(40) as u64);
            match train(&run, &mixture(), steps, &seen) {
                Some(end) => break end,
                None => done += 1,
            }
        };
        assert_eq!(*seen.lock().unwrap(), *whole.lock().unwrap(), "after {done} interruptions");
        assert_eq!(end, expected, "after {done} interruptions");
    }
    fs::remove_dir_all(folder).unwrap();
}
