//! Checkpoints of several ranks: each writes its own files, a damaged or missing one is found, and
//! a kill at any moment leaves a complete checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trainer::checkpoint;
use trainer::hooks::Checkpoint;
use trainer::optim::Sharded;
use trainer::prelude::*;
use trainer::testing::{Ranks, once};

use crate::distributed::folder_var;
use crate::ranks_support::{KILL, completed, errors, results};
use crate::support::{Random, scratch};

/// The tensors of a file of a checkpoint.
fn tensors(path: &Path) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// The names of the files of a folder.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn each_rank_writes_its_share_and_the_shares_combine_into_the_unsharded_state() {
    let newest = |scene: &str| {
        let folder = once(|| scratch(&format!("rank-files {scene}")));
        completed(2, scene, &folder_var(&folder));
        checkpoint::newest(&folder).unwrap_or_default() // none in a rank of a later call
    };
    for background in ["", " background"] {
        let plain = newest(&format!("epochs=1{background}"));
        let sharded = newest(&format!("epochs=1 sharded{background}"));
        once(|| {
            let expected = [
                "history.jsonl",
                "manifest.json",
                "model.safetensors",
                "optimizer.safetensors",
                "rank-00001.json",
                "rank-00001.safetensors",
                "state.safetensors",
            ];
            for folder in [&plain, &sharded] {
                assert_eq!(names(folder), expected.map(str::to_owned).into());
                checkpoint::verify(folder).unwrap();
                let others = tensors(&folder.join("state.safetensors"));
                assert!(others.keys().all(|name| !name.starts_with("rank/")), "{others:?}");
            }
            let whole = tensors(&plain.join("optimizer.safetensors"));
            let mut shares = tensors(&sharded.join("optimizer.safetensors"));
            assert!(!shares.is_empty() && shares.len() < whole.len());
            for (name, tensor) in tensors(&sharded.join("rank-00001.safetensors")) {
                if let Some(name) = name.strip_prefix("share/optimizer: ") {
                    assert!(shares.insert(name.to_owned(), tensor).is_none(), "both ranks have {name}");
                }
            }
            assert_eq!(shares, whole);
            let of_rank = tensors(&plain.join("rank-00001.safetensors"));
            assert!(of_rank.keys().all(|name| !name.starts_with("share/")), "{of_rank:?}");
            fs::remove_dir_all(plain.parent().unwrap()).unwrap();
            fs::remove_dir_all(sharded.parent().unwrap()).unwrap();
        });
    }
}

#[test]
fn a_torn_or_mixed_checkpoint_is_reported_with_the_file_and_the_rank() {
    let uninterrupted = completed(2, "accumulate=3 sharded", &[]);
    type Damage = fn(&Path, &Path);
    let damages: [(Damage, &str); 4] = [
        (
            |newest, _| fs::remove_file(newest.join("rank-00001.json")).unwrap(),
            "rank-00001.json: the state of rank 1 cannot be read",
        ),
        (
            |newest, _| fs::remove_file(newest.join("rank-00001.safetensors")).unwrap(),
            "rank-00001.safetensors: the state of rank 1 cannot be read",
        ),
        (
            |newest, _| {
                let path = newest.join("rank-00001.safetensors");
                let bytes = fs::read(&path).unwrap();
                fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            },
            "rank-00001.safetensors: the state of rank 1 cannot be read: the file has ",
        ),
        (
            |newest, older| {
                for name in ["rank-00001.json", "rank-00001.safetensors"] {
                    fs::copy(older.join(name), newest.join(name)).unwrap();
                }
            },
            "rank-00001.json: this file belongs to rank 1 and to a different save than the manifest, which expects rank 1 here: the folder mixes",
        ),
    ];
    for (damage, expected) in damages {
        let folder = once(|| scratch("rank-damage"));
        let vars = folder_var(&folder);
        errors(2, "token=1 at=21 accumulate=3 sharded keep=2 return", &vars);
        once(|| {
            let mut found: Vec<PathBuf> =
                fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            found.retain(|path| path.is_dir());
            found.sort();
            let [older, newest] = &found[..] else { panic!("{found:?}") };
            damage(newest, older);
            let error = checkpoint::verify(newest).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(checkpoint::newest(&folder).as_ref(), Some(older));
        });
        // All ranks skip it, although only one of them reads the file.
        let resumed = completed(2, "accumulate=3 sharded", &vars);
        assert!(resumed.weights == uninterrupted.weights);
        assert_eq!(resumed.losses, uninterrupted.losses);
        once(|| fs::remove_dir_all(&folder).unwrap());
    }
}

#[test]
fn a_folder_that_only_rank_0_sees_is_refused_when_the_fit_begins() {
    let results = Ranks::new(2).results(|| {
        let rank = trainer::distributed::World::from_env()?.rank();
        let folder = scratch(&format!("rank-folder-{rank}"));
        let vars = nn::VarStore::new(Device::Cpu);
        let _ = vars.root().ones("weight", &[1]);
        let mut trainer = Trainer::builder(Large(vars))
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .epochs(1)
            .hook(Checkpoint::new(&folder))
            .on::<BeforeFit>("begin", |_| panic!("the fit has begun"))
            .build()?;
        let refused =
            trainer.fit(&mut InMemory::new(Tensor::ones([4, 1], (Kind::Float, Device::Cpu)))?, None);
        let _ = fs::remove_dir_all(&folder);
        refused.map(drop)
    });
    for result in results.unwrap() {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("rank 1 could neither write its checkpoint files nor resume"), "{error}");
        assert!(error.contains("use one folder that all ranks can write"), "{error}");
    }
}

/// A save may be in the background when an error disconnects the ranks: then rank 0 publishes the
/// checkpoint if the files of all ranks are complete, and removes it otherwise.
#[test]
fn an_error_during_a_background_save_leaves_only_complete_checkpoints() {
    let uninterrupted = completed(2, "accumulate=3 sharded", &[]);
    for rank in [0, 1] {
        let folder = once(|| scratch("rank-error"));
        let vars = folder_var(&folder);
        // The first checkpoint is written after the fourth step, which is in the eleventh batch.
        errors(2, &format!("error={rank} at=11 accumulate=3 sharded background"), &vars);
        once(|| {
            for name in names(&folder).into_iter().filter(|name| name != ".trainer-lock") {
                assert!(name.starts_with("step-"), "{name}");
                checkpoint::verify(folder.join(name)).unwrap();
            }
        });
        let resumed = completed(2, "accumulate=3 sharded background", &vars);
        assert!(resumed.weights == uninterrupted.weights);
        once(|| fs::remove_dir_all(&folder).unwrap());
    }
}

/// Kills a random rank within or after the writing of a random checkpoint, and resumes, again and
/// again.
#[test]
fn ranks_killed_while_they_save_end_like_uninterrupted_ones() {
    // Clipped by the norm, as every scene is.
    let divided = "divided hooks recompute";
    let both = [(2, "sharded".to_owned()), (4, "sharded background".to_owned()), (2, divided.to_owned())];
    let more = [
        (2, "sharded background".to_owned()),
        (4, "sharded".to_owned()),
        (3, divided.to_owned()),
        (4, format!("{divided} background")),
        (2, format!("{divided} once")),
    ];
    let all = [&both[..], &more].concat();
    let soak: Option<usize> = std::env::var("TRAINER_SOAK").ok().map(|kills| kills.parse().unwrap());
    let (scenes, kills) = soak.map_or((&both[..], 2), |kills| (&all[..], kills.div_ceil(all.len())));
    let mut random = Random(88_172_645_463_325_252);
    for (count, how) in scenes {
        let count = *count;
        let scene = format!("accumulate=3 {how}");
        let uninterrupted = completed(count, &scene, &[]);
        let folder = once(|| scratch("rank-kills"));
        let mut done = 0;
        let mut runs = 0;
        while done < kills {
            let mut vars = folder_var(&folder).to_vec();
            let moment = [random.below(count as usize), 1 + random.below(4), random.below(8000)];
            let kill = moment.map(|number| number.to_string()).join(" ");
            vars.push((KILL, &kill));
            let outcomes = results(count, &scene, &vars);
            if outcomes.iter().any(Result::is_err) {
                done += 1;
                continue;
            }
            runs += 1; // the last save was before the one in which it would have been killed
            let outcome = outcomes.into_iter().next().unwrap().unwrap();
            assert!(outcome.weights == uninterrupted.weights, "{count} ranks, {scene}, {kill}");
            once(|| fs::remove_dir_all(&folder).unwrap());
        }
        let resumed = completed(count, &scene, &folder_var(&folder));
        assert!(resumed.weights == uninterrupted.weights, "{count} ranks, {scene}");
        assert_eq!(resumed.losses, uninterrupted.losses, "{count} ranks, {scene}");
        assert_eq!(resumed.metrics, uninterrupted.metrics, "{count} ranks, {scene}");
        once(|| {
            let left = names(&folder);
            let is_expected =
                |name: &String| name.starts_with("step-") && !name.contains('.') || name == ".trainer-lock";
            assert!(left.iter().all(is_expected), "{left:?}");
            println!("{count} ranks, {how}: {done} kills, {} runs", runs + 1);
            fs::remove_dir_all(&folder).unwrap();
        });
    }
}

/// The parameters of a model, in tensors of 4 MB.
struct Large(nn::VarStore);

impl Task for Large {
    type Batch = Tensor;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        let means = self.0.trainable_variables().into_iter().map(|weight| weight.mean(Kind::Float));
        Ok(Tensor::stack(&means.collect::<Vec<_>>(), 0).sum(Kind::Float) * batch.mean(Kind::Float))
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.square())
    }
}

/// The memory of a process in MB.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Memory {
    /// At most, in training before the save.
    trained: u64,
    /// When the save began.
    before: u64,
    /// At most, from then until the checkpoint was in its place.
    peak: u64,
}

/// Returns a field of `/proc/self/status` in MB.
fn status(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Trains a model of `size` MB with a sharded optimizer, whose state is twice as large, and returns
/// the memory of each rank.
fn memory(count: u32, size: i64, in_background: bool) -> Vec<Memory> {
    let folder = once(|| scratch("rank-memory"));
    let memory = Ranks::new(count).timeout(Duration::from_secs(400)).run(|| {
        let vars = nn::VarStore::new(Device::Cpu);
        for nth in 0..size / 4 {
            let _ = vars.root().ones(&format!("weight{nth}"), &[1 << 20]);
        }
        let measured = Arc::new(Mutex::new(Memory::default()));
        let (begin, end) = (Arc::clone(&measured), Arc::clone(&measured));
        let target = folder.join("one");
        let mut trainer = Trainer::builder(Large(vars))
            .optimizer(Sharded::new(AdamW::new(1e-3)))
            .discover(Discover::None)
            .max_steps(8)
            .on::<AfterStep>("save", move |cx| {
                if cx.counters().batches_seen == 2 {
                    match in_background {
                        true => cx.save_checkpoint_in_background(&target),
                        false => cx.save_checkpoint(&target),
                    }
                }
            })
            .on::<BeforeSaveCheckpoint>("begin", move |_| {
                let mut memory = begin.lock().unwrap();
                memory.trained = status("VmHWM");
                fs::write("/proc/self/clear_refs", "5").unwrap(); // resets the maximum
                memory.before = status("VmRSS");
            })
            .on::<AfterSaveCheckpoint>("end", move |_| end.lock().unwrap().peak = status("VmHWM"))
            .build()?;
        let rows = InMemory::new(Tensor::ones([128, 1], (Kind::Float, Device::Cpu)))?;
        trainer.fit(&mut rows.batch_size(16), None)?;
        Ok(std::mem::take(&mut *measured.lock().unwrap()))
    });
    let memory = memory.unwrap();
    once(|| fs::remove_dir_all(&folder).unwrap());
    memory
}

/// `TRAINER_TESTS_MODEL_MB=1024` measures a model of 1 GB on 4 ranks.
#[test]
fn saving_needs_no_more_memory_on_rank_0_than_on_the_others() {
    let size: u64 = std::env::var("TRAINER_TESTS_MODEL_MB").map_or(128, |size| size.parse().unwrap());
    let count = if size < 1024 { 2 } else { 4 };
    let spare = size / 2; // less than what gathering a share takes
    let share = 2 * size / u64::from(count);
    let foreground = memory(count, size.cast_signed(), false);
    println!("a model of {size} MB on {count} ranks, in the foreground: {foreground:?}");
    for Memory { before, peak, .. } in &foreground {
        assert!(*peak <= before + spare, "{foreground:?}");
    }
    let background = memory(count, size.cast_signed(), true);
    println!("a model of {size} MB on {count} ranks, in the background: {background:?}");
    for (rank, Memory { trained, peak, .. }) in background.iter().enumerate() {
        let copied = if rank == 0 { size + share } else { share };
        assert!(*peak <= trained + copied + spare, "{background:?}");
    }
}
