//! Power losses: what a save writes, syncs and renames is recorded, and after each change, the
//! folder is built again as a power loss would leave it. A run resumes there from the last complete
//! checkpoint, and ends like an uninterrupted one.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trainer::TrainerBuilder;
use trainer::hooks::{Checkpoint, Ema};
use trainer::loggers::{Csv, JsonLines};
use trainer::prelude::*;

use crate::changes::{Change, recorded_changes};
use crate::model;
use crate::preload::{mark, watched_process};
use crate::support::{exact_state, scratch};

/// The environment variable with the folder of the child process.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";

/// The index of a node in [`Disk`].
type Id = usize;

/// A file or a folder, each with what is on disk for certain.
#[derive(Clone)]
enum Node {
    File { content: Vec<u8>, synced: Vec<u8> },
    Folder { entries: BTreeMap<String, Id>, synced: BTreeMap<String, Id> },
}

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    /// Everything that was not synced: the data of files and the entries of folders.
    Unsynced,
    /// The data of files that was not synced.
    Data,
    /// As `Data`, but files have their length, and contain zeros instead of the data.
    Zeroed,
    /// Nothing: the process was killed.
    Nothing,
}

/// A model of a file system.
struct Disk(Vec<Node>);

impl Disk {
    fn new() -> Self {
        Disk(vec![Node::Folder { entries: BTreeMap::new(), synced: BTreeMap::new() }])
    }

    fn find(&self, path: &str) -> Option<Id> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(0, |id, name| match &self.0[id] {
            Node::Folder { entries, .. } => entries.get(name).copied(),
            Node::File { .. } => None,
        })
    }

    /// Returns the entries of the folder that contains `path`, and the name of `path` in it.
    fn parent<'p>(&mut self, path: &'p str) -> (&mut BTreeMap<String, Id>, &'p str) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let id = self.find(parent).unwrap();
        match &mut self.0[id] {
            Node::Folder { entries, .. } => (entries, name),
            Node::File { .. } => panic!("{parent} is a file"),
        }
    }

    fn enter(&mut self, path: &str, id: Id) {
        let (entries, name) = self.parent(path);
        entries.insert(name.to_owned(), id);
    }

    fn leave(&mut self, path: &str) -> Id {
        let (entries, name) = self.parent(path);
        entries.remove(name).unwrap()
    }

    fn content(&mut self, path: &str) -> Option<&mut Vec<u8>> {
        match self.find(path).map(|id| &mut self.0[id]) {
            Some(Node::File { content, .. }) => Some(content),
            _ => None, // a file that was removed while it was open
        }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Create(path) => {
                self.0.push(Node::File { content: Vec::new(), synced: Vec::new() });
                self.enter(path, self.0.len() - 1);
            }
            Change::CreateFolder(path) => {
                self.0.push(Node::Folder { entries: BTreeMap::new(), synced: BTreeMap::new() });
                self.enter(path, self.0.len() - 1);
            }
            Change::Truncate(path, length) => {
                if let Some(content) = self.content(path) {
                    content.resize(*length, 0);
                }
            }
            Change::Write(path, offset, bytes) => {
                if let Some(content) = self.content(path) {
                    content.resize(content.len().max(offset + bytes.len()), 0);
                    content[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
            }
            Change::Sync(path) => match self.find(path).map(|id| &mut self.0[id]) {
                Some(Node::File { content, synced }) => synced.clone_from(content),
                Some(Node::Folder { entries, synced }) => synced.clone_from(entries),
                None => {}
            },
            Change::Rename(from, to) => {
                let id = self.leave(from);
                self.enter(to, id);
            }
            Change::Link(from, to) => {
                let id = self.find(from).unwrap();
                self.enter(to, id);
            }
            Change::Remove(path) => drop(self.leave(path)),
            Change::Saved(_) => {}
        }
    }

    /// Returns everything below a folder by path, after a loss: the content of files, and `None`
    /// for folders.
    fn after(&self, loss: Loss) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        self.collect(0, Path::new(""), loss, &mut found);
        found
    }

    fn collect(&self, id: Id, path: &Path, loss: Loss, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
        match &self.0[id] {
            Node::Folder { entries, synced } => {
                found.insert(path.to_owned(), None);
                for (name, id) in if loss == Loss::Unsynced { synced } else { entries } {
                    self.collect(*id, &path.join(name), loss, found);
                }
            }
            Node::File { content, synced } => {
                let kept = match loss {
                    Loss::Nothing => content.clone(),
                    Loss::Unsynced | Loss::Data => synced.clone(),
                    Loss::Zeroed => {
                        let mut kept = synced.clone();
                        kept.resize(content.len(), 0);
                        kept
                    }
                };
                found.insert(path.to_owned(), Some(kept));
            }
        }
    }
}

/// The program that is recorded, and resumed after each loss.
fn program(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    model::builder()
        .optimizer(AdamW::new(0.01))
        .epochs(4)
        .seed(1)
        .run_folder(folder)
        .record_every(Every::Steps(1))
        .hook(Ema::new(0.9))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(Checkpoint::in_run_folder().keep_best(1, "valid/loss", Goal::Minimize))
        .resume(Resume::Auto)
        .on::<AfterSaveCheckpoint>("mark", |cx| {
            let name = cx.checkpoint().file_name().unwrap().to_str().unwrap().to_owned();
            mark(name.trim_start_matches("step-"));
        })
}

/// What an uninterrupted run ends with: the weights and the state of the optimizer, the averages,
/// and the rows of the table.
type End = (Vec<(String, Vec<u64>)>, Vec<(String, Vec<f32>)>, Vec<String>);

/// Runs the program in `runs/first`. Returns its end, and the step that it resumed from, 0 for
/// none.
fn run(folder: &Path) -> Result<(End, u64)> {
    let folder = &folder.join("runs/first");
    let step = Arc::new(AtomicU64::new(0));
    let resumed = Arc::clone(&step);
    let builder = program(folder).on::<AfterLoadCheckpoint>("resumed", move |cx| {
        resumed.store(cx.counters().batches_seen, Ordering::Relaxed);
    });
    let mut trainer = builder.build()?;
    trainer.fit(&mut model::rows(8).shuffle(1), Some(&mut model::rows(8)))?;
    let averages = trainer.hook::<Ema>().unwrap().average();
    let averages =
        averages.map(|(name, average)| (name.to_owned(), Vec::try_from(average.view([-1])).unwrap()));
    let averages = averages.collect();
    let table = fs::read_to_string(folder.join("values.csv"))?;
    let without_time = |line: &str| {
        let fields: Vec<_> = line.splitn(6, ',').collect();
        [&fields[..4], &fields[5..]].concat().join(",")
    };
    let rows = table.lines().map(without_time).collect();
    Ok(((exact_state(&trainer), averages, rows), step.load(Ordering::Relaxed)))
}

/// The program that is recorded.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_while_its_writes_are_recorded() {
    run(Path::new(&std::env::var(FOLDER).unwrap())).unwrap();
}

#[test]
fn a_run_resumes_after_a_power_loss_at_any_moment() {
    let whole = std::env::var_os("TRAINER_SOAK").is_some();
    let parent = scratch("power-loss").canonicalize().unwrap();
    let [recorded, folder] = ["recorded", "folder"].map(|name| parent.join(name));
    fs::create_dir(&recorded).unwrap();
    let log = parent.join("log");
    let mut command = watched_process("power_loss::trains_while_its_writes_are_recorded", &recorded);
    let output = command.env(FOLDER, &recorded).env("FAULTS_LOG", &log).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let changes = recorded_changes(&fs::read(&log).unwrap(), &recorded);
    fs::create_dir(&folder).unwrap();
    let (expected, _) = run(&folder).unwrap();

    let mut disk = Disk::new();
    let mut saved = 0;
    let mut saves = 0;
    let mut seen = HashSet::new();
    let mut tried = 0;
    let mut problems = Vec::new();
    for (nth, change) in changes.iter().enumerate() {
        disk.apply(change);
        if let Change::Saved(step) = change {
            saved = *step;
            saves += 1;
        }
        // A short test tries the second save, and the removal of the first checkpoint.
        if !whole && saves != 1 {
            continue;
        }
        for loss in [Loss::Unsynced, Loss::Data, Loss::Zeroed, Loss::Nothing] {
            let files = disk.after(loss);
            if !seen.insert((files.clone(), saved)) {
                continue;
            }
            fs::remove_dir_all(&folder).unwrap();
            for (path, content) in &files {
                match content {
                    None => fs::create_dir(folder.join(path)).unwrap(),
                    Some(content) => fs::write(folder.join(path), content).unwrap(),
                }
            }
            tried += 1;
            let problem = match run(&folder) {
                Err(error) => error.to_string(),
                Ok((_, step)) if step < saved => format!("resumed from {step}"),
                Ok((end, _)) if end != expected => "another end".to_owned(),
                Ok(_) => continue,
            };
            let shown = match change {
                Change::Write(path, at, bytes) => format!("{} bytes at {at} of {path}", bytes.len()),
                other => format!("{other:?}"),
            };
            problems.push(format!("after change {nth} ({shown}), {loss:?}, saved {saved}: {problem}"));
        }
    }
    println!("{} changes, {saves} saves, {tried} states", changes.len());
    assert!(problems.is_empty(), "{} of {tried}:\n{}", problems.len(), problems.join("\n"));
    assert!(saves >= 4 && tried > 20, "{saves} saves, {tried} states");
    fs::remove_dir_all(&parent).unwrap();
}
