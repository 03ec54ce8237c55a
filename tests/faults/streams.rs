//! A run on shards, two mixed data sets, and packed sequences is killed at random moments.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use trainer::data::rand::Rng;
use trainer::data::{IGNORED, Mixture, RowRng, Sample, Sequence, Sequences, Shards, TokenFile};
use trainer::hooks::{Checkpoint, EarlyStopping, Ema, HyperparameterSchedule};
use trainer::loggers::{Csv, JsonLines, Report, TensorBoard, Wandb};
use trainer::prelude::*;
use trainer::schedule::Cosine;
use trainer::tch::nn::Module;

use crate::kills::{FOLDER, KEPT, end_of, ends_like_an_uninterrupted_one, text};

/// Writes 12 tar files of texts of different lengths, the last of which is cut, and a file of
/// tokens.
fn write_data(folder: &Path) {
    fs::create_dir_all(folder.join("shards")).unwrap();
    for shard in 0..12_usize {
        let mut tar = ::tar::Builder::new(Vec::new());
        for row in 0..3 + shard % 4 {
            let text: Vec<u8> = (0..1 + (shard * 7 + row * 5) % 19)
                .map(|at| (shard * 31 + row * 17 + at * 3) as u8)
                .collect();
            let mut header = ::tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, format!("{shard}-{row}.txt"), &text[..]).unwrap();
        }
        let mut bytes = tar.into_inner().unwrap();
        if shard == 11 {
            bytes.truncate(1300);
        }
        fs::write(folder.join(format!("shards/{shard:02}.tar")), bytes).unwrap();
    }
    let tokens: Vec<u8> = (0..500_u16).flat_map(|at| (at * 7 % 256).to_le_bytes()).collect();
    fs::write(folder.join("tokens.bin"), tokens).unwrap();
}

/// Returns packed sequences of both data sets, of which the second comes in more and more often.
fn data(folder: &Path) -> impl Loader<Sequences> + use<> {
    let texts = Shards::tar([folder.join("shards")]).unwrap().buffer(16);
    let texts = texts.map(|sample: Sample, rng: &mut RowRng| {
        let shift = rng.gen_range(0..3);
        let tokens = sample.part("txt")?.iter().map(|byte| i64::from(*byte) + shift).collect::<Vec<_>>();
        Ok(Sequence::new(tokens))
    });
    let windows = TokenFile::u16(folder.join("tokens.bin")).unwrap().windows(9, 40);
    let mixture = Mixture::new().add(texts, 0.7).add_with(windows, |rows| 0.3 + rows as f64 / 500.0);
    DataLoader::new(mixture).batch_size(2).shuffle(11).workers(2).skip_damaged(true).pack(24).read_ahead(10)
}

/// A language model of one layer.
struct Lm {
    vars: nn::VarStore,
    tokens: nn::Embedding,
    positions: nn::Embedding,
    head: nn::Linear,
}

impl Task for Lm {
    type Batch = Sequences;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, batch: &Sequences, mode: Mode) -> Result<Tensor> {
        let inner = self.tokens.forward(&batch.tokens) + self.positions.forward(&batch.positions);
        Ok(self.head.forward(&inner.dropout(0.1, mode == Mode::Train)))
    }

    fn loss(&mut self, logits: &Tensor, batch: &Sequences) -> Result<Tensor> {
        Ok(batch.cross_entropy(logits))
    }

    fn weight(&self, batch: &Sequences) -> f64 {
        assert!(batch.targets.ge(IGNORED).all().int64_value(&[]) == 1);
        batch.weight()
    }
}

/// The program that is killed. It writes its final state to `end.json`.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_on_streams_until_killed() {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    // Beside the folder of the run, where all of its runs find it.
    let data_folder = folder.parent().unwrap().join("data");
    if !data_folder.join("tokens.bin").exists() {
        write_data(&data_folder);
    }
    tch::set_num_threads(1);
    tch::manual_seed(7);
    let vars = nn::VarStore::new(Device::Cpu);
    let root = vars.root();
    let task = Lm {
        tokens: nn::embedding(&root / "tokens", 512, 8, Default::default()),
        positions: nn::embedding(&root / "positions", 24, 8, Default::default()),
        head: nn::linear(&root / "head", 8, 512, Default::default()),
        vars,
    };
    let checkpoint = Checkpoint::in_run_folder()
        .every(Every::Steps(2))
        .keep_last(KEPT[0])
        .keep_best(KEPT[1], "valid/loss", Goal::Minimize)
        .in_background(true);
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .max_steps(60)
        .accumulate(2)
        .run_folder(&folder)
        .record_every(Every::Steps(2))
        .validate_every(Every::Steps(7))
        .resume(Resume::Auto)
        .hook(checkpoint)
        .hook(EarlyStopping::new("valid/loss", Goal::Minimize).patience(1000))
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(5)))
        .hook(Ema::new(0.9))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(TensorBoard::new())
        .hook(Wandb::new("digits"))
        .hook(Report::new())
        .hook(text())
        .tape(trainer::Tape::full())
        .on::<AfterTransfer>("slow", |_| std::thread::sleep(Duration::from_millis(2)))
        .build()
        .unwrap();
    let mut valid =
        DataLoader::new(TokenFile::u16(data_folder.join("tokens.bin")).unwrap().sequence(24)).batch_size(4);
    let summary = trainer.fit(&mut data(&data_folder), Some(&mut valid)).unwrap();
    fs::write(folder.join("end.json"), end_of(&trainer, &summary).to_string()).unwrap();
}

#[test]
fn a_killed_run_on_streams_ends_like_an_uninterrupted_one() {
    ends_like_an_uninterrupted_one("streams::trains_on_streams_until_killed");
}
