//! Loaders that yield more batches on some ranks than on others.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use trainer::data::{from_fn, from_fn_per_rank};
use trainer::distributed::Share;
use trainer::prelude::*;
use trainer::testing::{Ranks, once};

use crate::distributed::folder_var;
use crate::ranks_support::{completed, errors, same_as_one};
use crate::support::scratch;

#[test]
fn data_that_ends_earlier_on_some_ranks_is_trained_as_in_a_single_process() {
    let scenes = [
        "uneven",
        "uneven tokens accumulate=4",
        "uneven accumulate=5 sharded ahead",
        "uneven norms accumulate=3",
        "uneven turns",
        "uneven collective epochs=2",
        "uneven unused find_unused epochs=2",
        "uneven ema twice_the_rows epochs=2",
    ];
    same_as_one(&scenes, &[3]);
}

#[test]
fn a_run_that_is_interrupted_after_the_data_of_some_ranks_has_ended_resumes_bit_identically() {
    // Rank 0 has two batches in an epoch, rank 2 has four, and rank 1 has six. Buffers are averaged
    // before each checkpoint, which rounds them: a killed run has the same checkpoints.
    for (scene, interruptions) in [
        ("uneven accumulate=4 norms epochs=3 every=1", &[("kill=1", 9), ("kill=0", 11)][..]),
        ("uneven accumulate=4 ahead epochs=3 every=1", &[("token=0", 10), ("token=1", 8), ("token=2", 15)]),
    ] {
        let folder = once(|| scratch("uneven-whole"));
        let uninterrupted = completed(3, scene, &folder_var(&folder));
        once(|| fs::remove_dir_all(&folder).unwrap());
        for (interruption, at) in interruptions {
            let folder = once(|| scratch("uneven-resume"));
            let vars = folder_var(&folder);
            errors(3, &format!("{scene} {interruption} at={at} return"), &vars);
            let resumed = completed(3, scene, &vars);
            assert!(resumed.weights == uninterrupted.weights, "{scene} {interruption} at {at}");
            assert_eq!(resumed.losses, uninterrupted.losses, "{scene} {interruption} at {at}");
            assert_eq!(resumed.metrics, uninterrupted.metrics, "{scene} {interruption} at {at}");
            once(|| fs::remove_dir_all(&folder).unwrap());
        }
    }
}

#[test]
fn a_rank_without_any_batch_is_named() {
    for text in errors(3, "empty", &[]) {
        assert!(
            text.contains("rank 2 has no data left, but other ranks have another batch")
                && text.contains("it has had no batch in this pass: give each rank at least one"),
            "{text}"
        );
    }
}

/// A batch that cannot be copied.
struct Unique(Tensor);

impl Batch for Unique {
    fn samples(&self) -> Option<u64> {
        self.0.samples()
    }
    fn describe(&self, text: &mut String) {
        self.0.describe(text);
    }
    fn tensors(&self, visit: &mut dyn FnMut(&Tensor)) {
        self.0.tensors(visit);
    }
    fn tensors_mut(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        self.0.tensors_mut(visit);
    }
}

struct Scale {
    vars: nn::VarStore,
    weight: Tensor,
}

impl Task for Scale {
    type Batch = Unique;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Unique, _: Mode) -> Result<Tensor> {
        Ok(&batch.0 * &self.weight)
    }
    fn loss(&mut self, pred: &Tensor, _: &Unique) -> Result<Tensor> {
        Ok(pred.square().mean(Kind::Float))
    }
}

#[test]
fn a_batch_that_cannot_be_copied_is_an_error_on_the_rank_whose_data_has_ended() {
    let results = Ranks::new(2).results(|| {
        let vars = nn::VarStore::new(Device::Cpu);
        let weight = vars.root().ones("weight", &[]);
        let mut trainer = Trainer::builder(Scale { vars, weight }).optimizer(Sgd::new(0.1)).build()?;
        let mut data = from_fn_per_rank(|_, share: Share| {
            (0..2 - share.rank).map(|_| Unique(Tensor::ones([2], (Kind::Float, Device::Cpu))))
        });
        trainer.fit(&mut data, None).map(drop)
    });
    for result in results.unwrap() {
        let text = result.unwrap_err().to_string();
        let expected = "rank 1 has no data left";
        let why = "its batches cannot be copied: implement `Batch::try_clone` for them";
        assert!(text.contains(expected) && text.contains(why), "{text}");
    }
}

#[derive(Batch)]
struct Nested<T> {
    pair: (Tensor, Vec<String>),
    maps: (HashMap<String, Tensor>, BTreeMap<u8, [i64; 2]>),
    generic: Option<T>,
    #[batch(skip)]
    path: std::path::PathBuf,
}

#[derive(Batch)]
struct WithLock {
    tensor: Tensor,
    #[batch(skip)]
    _lock: std::sync::Mutex<()>,
}

#[test]
fn copied_batches_do_not_share_tensors() {
    let ones = || Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
    let batch = Nested {
        pair: (ones(), vec!["a".to_owned()]),
        maps: (HashMap::from([("x".to_owned(), ones())]), BTreeMap::from([(1, [2, 3])])),
        generic: Some(ones()),
        path: "data/a.txt".into(),
    };
    let copy = batch.try_clone().unwrap();
    batch.tensors(&mut |tensor| drop(tensor.shallow_clone().zero_()));
    let mut count = 0;
    copy.tensors(&mut |tensor| {
        count += 1;
        assert_eq!(tensor, &ones());
    });
    assert_eq!(count, 3);
    let expected = (vec!["a".to_owned()], [2, 3], "data/a.txt".into());
    assert_eq!((copy.pair.1, copy.maps.1[&1], copy.path), expected);
    let locked = WithLock { tensor: ones(), _lock: std::sync::Mutex::default() };
    assert!(locked.try_clone().is_none());
    assert_eq!(locked.tensor, ones());
    assert!(Unique(ones()).try_clone().is_none());
}

#[test]
fn a_closure_receives_the_rank_even_on_a_prefetch_thread() {
    let ranks = Ranks::new(3).run(|| {
        let data = from_fn_per_rank(|_, share: Share| {
            let row = move |_| {
                Tensor::full([1, 4], i64::from(share.rank * 10 + share.of), (Kind::Float, Device::Cpu))
            };
            (0..2).map(move |nth| (row(nth), Tensor::zeros([1], (Kind::Int64, Device::Cpu))))
        });
        let mut data = data.with_len(2).prefetch(2);
        data.share(trainer::distributed::World::from_env()?.share())?;
        let first: Vec<(Tensor, Tensor)> = data.batches(0, 0)?.collect::<Result<_>>()?;
        Ok(first[0].0.double_value(&[0, 0]))
    });
    assert_eq!(ranks.unwrap(), [3.0, 13.0, 23.0]);
}

#[test]
fn the_length_of_an_epoch_is_that_of_the_rank_with_the_most_batches() {
    let lengths = Ranks::new(2).run(|| {
        let rank = trainer::distributed::World::from_env()?.rank();
        let rows = move |_| {
            (0..4 - u64::from(rank)).map(|_| {
                let inputs = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
                (inputs, Tensor::zeros([2], (Kind::Int64, Device::Cpu)))
            })
        };
        let mut data = from_fn(rows).with_len(4 - u64::from(rank)).deterministic(true).per_rank();
        let mut trainer = crate::model::builder().epochs(1).limit_train_batches(0.5).build()?;
        let summary = trainer.fit(&mut data, None)?;
        Ok((summary.counters.batches_seen, summary.counters.samples_seen))
    });
    assert_eq!(lengths.unwrap(), [(2, 8); 2]);
}
