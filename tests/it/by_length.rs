//! Batches by length: packed sequences and buckets, for any number of workers and ranks, from any
//! batch, and after a resume; damaged rows; rows that do not fit together.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use trainer::data::rand::Rng;
use trainer::data::{Collate, IGNORED, RowRng, Sequence, Sequences, pad, pad_mask};
use trainer::distributed::Share;
use trainer::hooks::Checkpoint;
use trainer::prelude::*;
use trainer::tch::nn::Module;

use crate::support::{cancelled_at, device, own_warnings, parameters, scratch};

/// Texts whose tokens say which text it is and which epoch's noise was drawn, and which records the
/// rows that were read.
struct Texts {
    lengths: Vec<usize>,
    read: Mutex<Vec<usize>>,
    damaged: fn(usize) -> bool,
}

impl Texts {
    fn new(rows: usize) -> Arc<Self> {
        Arc::new(Texts {
            lengths: (0..rows).map(|row| (row * 37 + row * row * 11) % 23 + 1).collect(),
            read: Mutex::default(),
            damaged: |_| false,
        })
    }
}

impl Dataset for Texts {
    type Row = Sequence;

    fn len(&self) -> usize {
        self.lengths.len()
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<Sequence> {
        self.read.lock().unwrap().push(index);
        if (self.damaged)(index) {
            return Err(Error::msg(format!("text {index} is damaged")));
        }
        let noise = rng.gen_range(0..1000);
        let tokens = (0..self.lengths[index]).map(|at| (index * 100 + at) as i64 * 1000 + noise);
        Ok(tokens.collect::<Vec<_>>().into())
    }
}

type Values = [Vec<Vec<i64>>; 4];

fn values(batch: &Sequences) -> Values {
    let Sequences { tokens, targets, positions, segments } = batch;
    [tokens, targets, positions, segments].map(|tensor| Vec::try_from(tensor).unwrap())
}

/// Returns all batches of a pass from `start`, and the position before each.
fn pass<L: Loader<Sequences> + ?Sized>(loader: &mut L, epoch: u64, start: u64) -> (Vec<Values>, Vec<String>) {
    let notes = loader.notes().unwrap();
    let mut positions = Vec::new();
    let mut at = start;
    let batches = loader.batches(epoch, start).unwrap();
    let batches = batches.map(|batch| {
        positions.push(notes.position(at).expect("the position before each batch is noted"));
        at += 1;
        values(&batch.unwrap())
    });
    (batches.collect(), positions)
}

type Boxed = Box<dyn Loader<Sequences>>;

/// Returns each loader that chooses its batches by length, with a number of workers.
fn loaders(rows: usize, workers: usize) -> [(&'static str, Boxed); 3] {
    let loader = || DataLoader::new(Texts::new(rows)).batch_size(3).shuffle(5).workers(workers);
    [
        ("packed", Box::new(loader().pack(16).read_ahead(20))),
        ("in buckets", Box::new(loader().by_length(&[6, 12, 18], Sequence::len))),
        ("prefetched", Box::new(loader().pack(40).prefetch(2))),
    ]
}

#[test]
fn every_token_is_in_exactly_one_batch_with_its_target_position_and_segment() {
    let texts = Texts::new(200);
    let mut expected = BTreeMap::new();
    for (row, length) in texts.lengths.iter().enumerate() {
        for at in 0..*length {
            let target = if at + 1 < *length { Some(row * 100 + at + 1) } else { None };
            expected.insert(row * 100 + at, target);
        }
    }
    let total: usize = texts.lengths.iter().sum();
    // With a length of 16, texts of up to 23 tokens are split.
    for length in [16, 40] {
        let mut found = BTreeMap::new();
        let mut loader = DataLoader::new(Arc::clone(&texts)).batch_size(3).shuffle(5).pack(length);
        let (batches, _) = pass(&mut loader, 0, 0);
        for [tokens, targets, positions, segments] in &batches {
            for row in 0..tokens.len() {
                let mut before = (0, -1);
                for at in 0..length {
                    let (token, segment) = (tokens[row][at], segments[row][at]);
                    if segment == 0 {
                        assert_eq!([token, targets[row][at], positions[row][at]], [0, IGNORED, 0]);
                        continue;
                    }
                    let is_same = segment == before.0;
                    assert!(is_same || segment == before.0 + 1);
                    assert_eq!(positions[row][at], if is_same { before.1 + 1 } else { 0 });
                    before = (segment, positions[row][at]);
                    let target = targets[row][at];
                    let target = (target != IGNORED).then_some(target as usize / 1000);
                    assert_eq!(found.insert(token as usize / 1000, target), None, "each token once");
                }
            }
        }
        assert_eq!(found, expected);
        let room = batches.iter().map(|batch| batch[0].len() * length).sum::<usize>();
        assert!(total as f64 / room as f64 > 0.97, "{total} tokens in {room}");
    }
}

#[test]
fn batches_depend_neither_on_workers_nor_on_where_a_pass_begins() {
    for nth in 0..3 {
        for epoch in [0, 3] {
            let (name, mut loader) = loaders(150, 0).into_iter().nth(nth).unwrap();
            let (all, positions) = pass(&mut *loader, epoch, 0);
            assert!(all.len() > 10, "{name}: {}", all.len());
            for workers in [0, 1, 3] {
                let (_, mut loader) = loaders(150, workers).into_iter().nth(nth).unwrap();
                assert_eq!(pass(&mut *loader, epoch, 0).0, all, "{name}, {workers} workers");
                for start in [1, 7, all.len() - 1] {
                    assert_eq!(
                        pass(&mut *loader, epoch, start as u64).0,
                        all[start..],
                        "{name}, from {start}"
                    );
                    loader.seek(epoch, start as u64, &positions[start]).unwrap();
                    let sought = pass(&mut *loader, epoch, start as u64);
                    assert_eq!(sought.0, all[start..], "{name}, sought {start}");
                    assert_eq!(sought.1, positions[start..], "{name}, sought {start}");
                }
            }
        }
    }
}

#[test]
fn ranks_divide_the_batches_of_one_process() {
    for nth in 0..3 {
        let (name, mut loader) = loaders(100, 1).into_iter().nth(nth).unwrap();
        let (all, positions) = pass(&mut *loader, 0, 0);
        for of in [2, 3, 5] {
            let ranks: Vec<_> = (0..of)
                .map(|rank| {
                    let (_, mut loader) = loaders(100, 1).into_iter().nth(nth).unwrap();
                    loader.share(Share { rank, of }).unwrap();
                    let own = pass(&mut *loader, 0, 0);
                    let notes = loader.notes().unwrap();
                    let borrowed: Vec<bool> =
                        (0..own.0.len()).map(|at| notes.is_borrowed(at as u64)).collect();
                    (own, borrowed)
                })
                .collect();
            for (at, expected) in all.iter().enumerate() {
                let own =
                    ranks.iter().filter(|(_, borrowed)| !borrowed[at]).map(|((batches, _), _)| &batches[at]);
                // Buckets are padded to the longest of the rank's own rows: compare what is in
                // them.
                let tokens = own.flat_map(|own| own[0].iter().map(|row| trimmed(row)));
                assert_eq!(
                    tokens.collect::<Vec<_>>(),
                    expected[0].iter().map(|row| trimmed(row)).collect::<Vec<_>>(),
                    "{name}: batch {at} on {of} ranks"
                );
            }
            for ((_, own), _) in &ranks {
                assert_eq!(*own, positions, "{name}: a position does not depend on the ranks");
            }
        }
    }
}

fn trimmed(row: &[i64]) -> &[i64] {
    let end = row.iter().rposition(|token| *token != 0).map_or(0, |last| last + 1);
    &row[..end]
}

/// A language model: the logits of the next token follow from the token and its position.
struct Lm {
    vars: nn::VarStore,
    tokens: nn::Embedding,
    positions: nn::Embedding,
    head: nn::Linear,
}

impl Lm {
    fn new() -> Self {
        tch::set_num_threads(1);
        let vars = nn::VarStore::new(device());
        let root = vars.root();
        let tokens = nn::embedding(&root / "tokens", 32, 8, Default::default());
        let positions = nn::embedding(&root / "positions", 64, 8, Default::default());
        let head = nn::linear(&root / "head", 8, 32, Default::default());
        // Other tests draw from the random numbers of the process too.
        let _guard = tch::no_grad_guard();
        for (name, mut tensor) in vars.variables() {
            let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, device()));
            tensor.copy_(&((values + name.len() as f64).sin() * 0.3).view_as(&tensor));
        }
        Lm { vars, tokens, positions, head }
    }
}

impl Task for Lm {
    type Batch = Sequences;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, batch: &Sequences, _: Mode) -> Result<Tensor> {
        let tokens = self.tokens.forward(&batch.tokens.remainder(32));
        Ok(self.head.forward(&(tokens + self.positions.forward(&batch.positions))))
    }

    fn loss(&mut self, logits: &Tensor, batch: &Sequences) -> Result<Tensor> {
        let counts = batch.targets.not_equal(IGNORED);
        let ignored = Tensor::from(IGNORED);
        let targets = batch.targets.remainder(32).where_self(&counts, &ignored).flatten(0, -1);
        let mean = tch::Reduction::Mean;
        Ok(logits.flatten(0, 1).cross_entropy_loss::<Tensor>(&targets, None, mean, IGNORED, 0.0))
    }

    fn weight(&self, batch: &Sequences) -> f64 {
        batch.weight()
    }
}

/// Trains for two epochs on each of the loaders in turn, up to `stop_at` batches, and resumes what
/// a checkpoint in `folder` has. Returns the weights, and the rows that were read.
fn train(folder: &Path, nth: usize, workers: usize, stop_at: Option<u64>) -> (Vec<Tensor>, usize) {
    let texts = Texts::new(120);
    let loader = DataLoader::new(Arc::clone(&texts)).batch_size(3).shuffle(5).workers(workers);
    let mut train: Boxed = match nth {
        0 => Box::new(loader.pack(16).read_ahead(20)),
        1 => Box::new(loader.by_length(&[6, 12, 18], Sequence::len).prefetch(2)),
        _ => Box::new(loader.pack(40)),
    };
    let mut valid = DataLoader::new(Texts::new(30)).batch_size(2).pack(24);
    let builder = Trainer::builder(Lm::new())
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .epochs(2)
        .accumulate(2)
        .validate_every(Every::Steps(4))
        .hook(Checkpoint::new(folder).every(Every::Steps(1)))
        .resume(Resume::Auto);
    let mut trainer = cancelled_at(stop_at, builder).build().unwrap();
    let ended = trainer.fit(&mut train, Some(&mut valid));
    assert_eq!(ended.is_err(), stop_at.is_some());
    let read = texts.read.lock().unwrap().len();
    (parameters(&trainer), read)
}

#[test]
fn a_resumed_run_continues_with_the_next_batch_and_rereads_only_pending_rows() {
    for nth in 0..3 {
        let folder = scratch(&format!("by_length_{nth}"));
        let (expected, all) = train(&folder.join("whole"), nth, 2, None);
        for stop_at in [1, 5, 9, 14, 20] {
            let folder = folder.join(stop_at.to_string());
            train(&folder, nth, 0, Some(stop_at));
            let (weights, read) = train(&folder, nth, 3, None);
            assert_eq!(weights, expected, "loader {nth}, stopped at batch {stop_at}");
            // Those of the batches that are done are not read again, except for the few that were
            // held.
            assert!(stop_at < 9 || read < all, "stopped at batch {stop_at}: {read} of {all} rows were read");
        }
    }
}

/// Returns the batches of a loader that leaves out damaged rows, and its warnings.
fn with_damage<B: Batch>(mut loader: impl Loader<B>, start: u64) -> (Vec<B>, Vec<String>) {
    let batches = loader.batches(0, start).unwrap().map(Result::unwrap).collect();
    (batches, loader.notes().unwrap().take_warnings())
}

#[test]
fn damaged_rows_are_named_and_nothing_else_is_lost() {
    // All rows of the second batch, and one of the fourth.
    let damaged = |row: usize| [4, 5, 6, 7, 13].contains(&row);
    let texts = || Arc::new(Texts { damaged, ..Arc::into_inner(Texts::new(30)).unwrap() });
    let loader = |workers| DataLoader::new(texts()).batch_size(4).workers(workers);
    let error = loader(0).batches(0, 1).unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "text 4 is damaged", "not skipped unless asked");

    for workers in [0, 2] {
        let (batches, mut warnings) = with_damage(loader(workers).skip_damaged(true), 0);
        let rows = |batch: &Sequences| -> Vec<i64> {
            Vec::try_from(batch.tokens.select(1, 0).divide_scalar_mode(100_000, "floor").to_kind(Kind::Int64))
                .unwrap()
        };
        let left: Vec<Vec<i64>> = batches.iter().map(rows).collect();
        assert_eq!(left[..3], [vec![0, 1, 2, 3], vec![8, 9, 10, 11], vec![12, 14, 15]]);
        assert_eq!(left.concat().len(), 25);
        warnings.sort();
        let expected = [13, 4, 5, 6, 7].map(|row| format!("skipped a damaged row: text {row} is damaged"));
        assert_eq!(warnings, expected);

        // A resumed pass knows which batches were left out.
        let mut resumed = loader(workers).skip_damaged(true);
        let all = {
            let mut first = loader(workers).skip_damaged(true);
            let notes = first.notes().unwrap();
            let mut batches = first.batches(0, 0).unwrap();
            let _ = (batches.next(), batches.next());
            notes.position(2).unwrap()
        };
        resumed.seek(0, 2, &all).unwrap();
        assert_eq!(with_damage(resumed, 2).0.iter().map(rows).collect::<Vec<_>>(), left[2..]);

        // Packing leaves the same rows out.
        let (packed, warnings) = with_damage(loader(workers).skip_damaged(true).pack(30), 0);
        let tokens: f64 =
            packed.iter().map(|batch| batch.segments.not_equal(0).sum(Kind::Int64).double_value(&[])).sum();
        let lengths = Texts::new(30).lengths.clone();
        let expected: usize = (0..30).filter(|row| !damaged(*row)).map(|row| lengths[row]).sum();
        assert_eq!((tokens as usize, warnings.len()), (expected, 5));
    }

    // On several ranks, the batch without any row is left out on all of them.
    for of in [2, 3, 5] {
        let mut seen = Vec::new();
        for rank in 0..of {
            let mut loader = loader(0).skip_damaged(true);
            loader.share(Share { rank, of }).unwrap();
            let notes = loader.notes().unwrap();
            let batches: Vec<Sequences> = loader.batches(0, 0).unwrap().map(Result::unwrap).collect();
            assert_eq!(batches.len(), 7, "rank {rank} of {of}");
            for (at, batch) in batches.iter().enumerate() {
                let tokens = Vec::<i64>::try_from(batch.tokens.select(1, 0)).unwrap();
                if !notes.is_borrowed(at as u64) {
                    seen.extend(tokens.into_iter().map(|token| token / 100_000));
                }
            }
        }
        seen.sort_unstable();
        let expected: Vec<i64> = (0..30).filter(|row| !damaged(*row as usize)).collect();
        assert_eq!(seen, expected, "{of} ranks");
    }
}

#[test]
fn only_the_first_100_damaged_rows_are_named() {
    let texts = Arc::new(Texts { damaged: |row| row < 300, ..Arc::into_inner(Texts::new(301)).unwrap() });
    let (batches, warnings) = with_damage(DataLoader::new(texts).skip_damaged(true), 0);
    assert_eq!((batches.len(), warnings.len()), (1, 101));
    assert_eq!(
        warnings[100],
        "more than 100 damaged rows in epoch 0: the others are skipped without a warning"
    );
}

#[test]
fn a_run_prints_and_records_the_warnings_of_a_loader() {
    let texts = Arc::new(Texts { damaged: |row| row == 7, ..Arc::into_inner(Texts::new(30)).unwrap() });
    let mut trainer = Trainer::builder(Lm::new())
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .epochs(1)
        .build()
        .unwrap();
    let mut train = DataLoader::new(texts).batch_size(4).skip_damaged(true).prefetch(1);
    let summary = trainer.fit(&mut train, None).unwrap();
    assert_eq!(own_warnings(&summary), ["skipped a damaged row: text 7 is damaged"]);
}

#[test]
fn positions_from_a_different_loader_are_refused() {
    let mut packed = DataLoader::new(Texts::new(30)).pack(8);
    let error = packed.seek(0, 3, "7").unwrap_err().to_string();
    assert!(
        error.starts_with("the position of batch 3 of the data in the checkpoint cannot be read: "),
        "{error}"
    );
    for beyond in [r#"{"next": 31, "held": []}"#, r#"{"next": 3, "held": [[30, 0]]}"#] {
        let error = packed.seek(0, 3, beyond).unwrap_err().to_string();
        assert_eq!(error, "the position of batch 3 in the checkpoint is row 31, but the data has 30 rows");
    }
    let error = DataLoader::new(Texts::new(30)).seek(0, 3, "x").unwrap_err().to_string();
    assert_eq!(error, "the position of batch 3 in the checkpoint is \"x\": expected a number");
}

#[test]
fn masks_limit_each_token_to_its_own_sequence() {
    let batch =
        DataLoader::new(vec![vec![5_i64; 3], vec![6; 2]]).pack(6).batches(0, 0).unwrap().next().unwrap();
    let batch: Sequences = batch.unwrap();
    let causal: Vec<Vec<bool>> = batch.causal_mask().view([6, 6]).try_into().unwrap();
    let expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ];
    assert_eq!(causal, expected.map(|row| row.map(|value| value == 1).to_vec()));
    let both: Vec<Vec<bool>> = batch.mask().view([6, 6]).try_into().unwrap();
    assert!(both[0][2] && both[3][4] && !both[2][3] && !both[5][4]);
    assert_eq!(batch.weight(), 3.0, "the last token of each sequence has no target");
}

#[test]
fn targets_excluded_from_the_loss_are_marked_as_ignored() {
    let answer = Sequence::answer(&[1, 2, 3], &[4, 5]);
    assert_eq!(
        (answer.tokens(), answer.targets()),
        (&[1, 2, 3, 4, 5][..], &[IGNORED, IGNORED, 4, 5, IGNORED][..])
    );
    assert_eq!(Sequence::answer(&[], &[4, 5]).targets(), [5, IGNORED]);
    assert_eq!(Sequence::new(vec![]).targets(), [0_i64; 0]);
    assert!(Sequence::new(vec![]).is_empty());
    let error = Sequence::with_targets(vec![1, 2], vec![1]).unwrap_err().to_string();
    assert!(
        error.starts_with("a sequence of 2 tokens has 1 targets: expected one for each token"),
        "{error}"
    );
}

#[test]
fn rows_are_collated_by_their_type() {
    let tensor = |values: &[i64]| Tensor::from_slice(values);
    let row = |_| (1_i64, vec![1.0_f32, 2.0], [true, false], "a".to_owned(), tensor(&[7, 8]));
    let rows = (0..3).map(row).collect();
    let (numbers, vectors, arrays, texts, tensors) = Collate::collate(rows).unwrap();
    assert_eq!(numbers, tensor(&[1, 1, 1]));
    assert_eq!((vectors.size(), vectors.kind()), (vec![3, 2], Kind::Float));
    assert_eq!((arrays.size(), arrays.kind()), (vec![3, 2], Kind::Bool));
    assert_eq!((texts, tensors.size()), (vec!["a".to_owned(); 3], vec![3, 2]));

    let error = Vec::<f32>::collate(vec![vec![1.0], vec![1.0, 2.0]]).unwrap_err().to_string();
    assert!(
        error.starts_with("the rows of a batch have different lengths, 1 and 2: make them equal"),
        "{error}"
    );
    let error = Tensor::collate(vec![tensor(&[1]), tensor(&[1, 2])]).unwrap_err().to_string();
    let expected = "the rows of a batch are tensors of different shapes or dtypes, Int64 [1] and Int64 [2]: make them equal";
    assert!(error.starts_with(expected), "{error}");

    assert_eq!(
        pad(&[vec![1_i64, 2], vec![], vec![3]], 9).unwrap(),
        Tensor::from_slice2(&[[1_i64, 2], [9, 9], [3, 9]])
    );
    let mask: Vec<Vec<bool>> = pad_mask(&[2, 0, 1]).try_into().unwrap();
    assert_eq!(mask, [[true, true], [false, false], [true, false]]);
}

/// An order that is too short.
struct Short;

impl Dataset for Short {
    type Row = i64;

    fn len(&self) -> usize {
        5
    }
    fn row(&self, index: usize, _: &mut RowRng) -> Result<i64> {
        Ok(index as i64)
    }
    fn order(&self, _: u64, _: Option<u64>) -> Result<Option<Vec<usize>>> {
        Ok(Some(vec![0; 3]))
    }
}

#[test]
fn an_order_of_the_wrong_length_is_refused() {
    let error = DataLoader::new(Short).batches(0, 0).err().unwrap().to_string();
    assert_eq!(
        error,
        "`Dataset::order` returned 3 indices: expected one for each of the 5 rows of the data set"
    );
}
