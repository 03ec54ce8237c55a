//! A run with everything on is killed at random moments: it ends like an uninterrupted one, and
//! leaves nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trainer::TrainerBuilder;
use trainer::checkpoint;
use trainer::data::rand::Rng;
use trainer::data::{NamedLoaders, RowRng};
use trainer::hooks::{
    ActivationCheckpointing, Amp, Checkpoint, Distillation, EarlyStopping, Ema, Freeze,
    HyperparameterSchedule, Lora, MixUp, ReduceOnPlateau, SpikeGuard,
};
use trainer::loggers::{Csv, JsonLines, Report, TensorBoard, ToFile, Wandb};
use trainer::optim::Muon;
use trainer::prelude::*;
use trainer::schedule::Cosine;

use crate::changes::recorded_changes;
use crate::log_rows::{Rows, rows};
use crate::preload::{faulty_process, watched_process};
use crate::support::{Random, exact_state, scratch};

/// The environment variable with the folder of the child process.
pub(crate) const FOLDER: &str = "TRAINER_TESTS_FOLDER";
const EPOCHS: u64 = 8;
/// The number of checkpoints that are kept: the last ones, and the best ones.
pub(crate) const KEPT: [usize; 2] = [2, 2];

/// Counts the points that fire, with state that serde saves.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
struct Counts {
    moments: BTreeMap<String, u64>,
    worst: f64,
}

#[hook(state)]
impl Counts {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {
        self.worst = f64::NEG_INFINITY;
        *self.moments.entry("before_fit".into()).or_default() += 1;
    }
    fn before_epoch(&mut self, _: &mut Cx<BeforeEpoch>) {
        *self.moments.entry("before_epoch".into()).or_default() += 1;
    }
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        *self.moments.entry(format!("after_step {}", cx.phase())).or_default() += 1;
        self.worst = self.worst.max(cx.step_loss().unwrap().double_value(&[]));
    }
    fn before_valid(&mut self, _: &mut Cx<BeforeValid>) {
        *self.moments.entry("before_valid".into()).or_default() += 1;
    }
    fn after_valid(&mut self, _: &mut Cx<AfterValid>) {
        *self.moments.entry("after_valid".into()).or_default() += 1;
    }
}

/// Returns a network with buffers and random numbers: convolution, batch norm and dropout.
fn net(root: &nn::Path<'_>) -> nn::SequentialT {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    let block = nn::seq_t()
        .add(nn::batch_norm2d(root / "bn", 4, Default::default()))
        .add_fn(|xs| xs.relu().flatten(1, -1))
        .add_fn_t(|xs, train| xs.dropout(0.3, train));
    nn::seq_t()
        .add(nn::conv2d(root / "conv", 1, 4, 3, same))
        .add(block.named_t("block"))
        .add(nn::linear(root / "fc", 4 * 16, 3, Default::default()).named(root / "fc"))
}

/// Returns a teacher, which is the same in every process.
fn teacher() -> Distillation {
    let vs = nn::VarStore::new(Device::Cpu);
    let weight = vs.root().zeros("weight", &[3, 16]);
    let values = Tensor::arange(3 * 16, (Kind::Float, Device::Cpu)).sin().view([3, 16]);
    tch::no_grad(|| weight.shallow_clone().copy_(&values));
    Distillation::from_fn(vs, move |(inputs, _): &(Tensor, Tensor)| {
        Ok(inputs.flatten(1, -1).linear::<Tensor>(&weight, None))
    })
}

/// Waves with random noise, which worker threads produce.
struct Waves;

impl Dataset for Waves {
    type Row = (Tensor, i64);

    fn len(&self) -> usize {
        90
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<(Tensor, i64)> {
        let values = (0..16).map(|at| ((index * 16 + at) as f32 * 0.7).sin() + rng.gen_range(-0.1..0.1));
        let wave = Tensor::from_slice(&values.collect::<Vec<f32>>()).view([1, 4, 4]);
        Ok((wave, (index as i64 * 5) % 3))
    }
}

fn valid(rows: i64, factor: f64) -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::arange(rows * 16, (Kind::Float, Device::Cpu)).view([rows, 1, 4, 4]);
    let labels = Tensor::arange(rows, (Kind::Int64, Device::Cpu)).remainder(3);
    InMemory::new(((inputs * factor).sin(), labels)).unwrap().batch_size(8)
}

fn program(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    tch::set_num_threads(1);
    tch::manual_seed(7);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = net(&vs.root());
    if checkpoint::newest(folder.join("checkpoints")).is_some() {
        // A resumed run must use the random state of the checkpoint, not the one of the process.
        tch::manual_seed(i64::from(std::process::id()));
    }
    let task = Supervised::new(vs, net, |logits: &Tensor, targets: &Tensor| {
        logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0)
    });
    let optimizer = Muon::new(0.02)
        .group("conv.*", AdamW::new(0.01))
        .group("bn.*", AdamW::new(0.01))
        .group("fc.bias", AdamW::new(0.01));
    let checkpoint = Checkpoint::in_run_folder()
        .every(Every::Steps(2))
        .keep_last(KEPT[0])
        .keep_best(KEPT[1], "valid/clean/loss", Goal::Minimize)
        .in_background(true);
    Trainer::builder(task)
        .optimizer(optimizer)
        .discover(Discover::None)
        .epochs(EPOCHS)
        .accumulate(3)
        .clip_grad_norm(0.5)
        .run_folder(folder)
        .record_every(Every::Steps(2))
        .validate_every(Every::Fraction(0.5))
        .resume(Resume::Auto)
        .hook(checkpoint)
        .hook(EarlyStopping::new("valid/clean/loss", Goal::Minimize).patience(4 * EPOCHS))
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(0.1)))
        .hook(ReduceOnPlateau::new("valid/noisy/loss", Goal::Minimize).patience(1))
        .hook(Amp::bf16())
        .hook(ActivationCheckpointing::new("block"))
        .hook(SpikeGuard::new().window(5).threshold(2.0).keep_every(2).limit(1000))
        .hook(MixUp::new(0.3).classes(3))
        .hook(Freeze::new("conv.*").thaw_at(3, "conv.*"))
        .hook(Lora::new("fc", 2).dropout(0.2).trainable(["conv.*", "bn.*"]))
        .hook(teacher())
        .hook(Ema::new(0.9))
        .hook(Counts::default())
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(Report::new())
        .hook(TensorBoard::new())
        .hook(Wandb::new("digits"))
        .hook(text())
        .tape(trainer::Tape::full())
        .on::<AfterTransfer>("slow", |_| std::thread::sleep(Duration::from_millis(1)))
}

/// Returns a custom logger.
pub(crate) fn text() -> ToFile {
    ToFile::in_run_folder("values.tsv", |record, out| {
        for (name, value) in record.scalars() {
            writeln!(out, "{}\t{name}\t{value}", record.counters().batches_seen)?;
        }
        Ok(())
    })
}

/// The program that is killed. It writes its final state to `end.json`.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_with_everything_on_until_killed() {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let mut trainer = program(&folder).build().unwrap();
    let mut train = DataLoader::new(Waves).batch_size(8).shuffle(3).workers(2);
    let mut valid = NamedLoaders::new().add("clean", valid(30, 0.7)).add("noisy", valid(20, 1.3));
    let summary = trainer.fit(&mut train, Some(&mut valid)).unwrap();

    let mut end = end_of(&trainer, &summary);
    end["counts"] = format!("{:?}", trainer.hook::<Counts>().unwrap()).into();
    end["spikes"] = serde_json::json!(trainer.hook::<SpikeGuard>().unwrap().spikes());
    fs::write(folder.join("end.json"), serde_json::to_string_pretty(&end).unwrap()).unwrap();
}

/// Returns the final state of a run with averages, early stopping and checkpoints.
pub(crate) fn end_of(trainer: &Trainer<impl Task>, summary: &Summary) -> serde_json::Value {
    let averages: BTreeMap<&str, String> =
        trainer.hook::<Ema>().unwrap().average().map(|(name, tensor)| (name, bits(tensor))).collect();
    let best = trainer.hook::<Checkpoint>().unwrap().best();
    serde_json::json!({
        "state": exact_state(trainer),
        "averages": averages,
        "step": format!("{:?}", summary.counters),
        "metrics": format!("{:?}", summary.metrics),
        "history": format!("{:?}", summary.history),
        "lr": format!("{:?}", trainer.optimizer().unwrap().groups()[0].lr),
        "best": format!("{:?}", trainer.hook::<EarlyStopping>().unwrap().best()),
        "kept": best.map(|(path, value)| (path.file_name().map(ToOwned::to_owned), value)),
    })
}

fn bits(tensor: &Tensor) -> String {
    let values: Vec<f64> = Vec::try_from(&tensor.to_kind(Kind::Double).view([-1])).unwrap();
    values.iter().map(|value| format!("{:x} ", value.to_bits())).collect()
}

fn start(mut command: Command, folder: &Path) -> Child {
    command.env(FOLDER, folder).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What a run ends with: its final state, the rows of its loggers, and the tensors of its
/// checkpoints.
struct End {
    state: String,
    rows: Rows,
    checkpoints: BTreeMap<PathBuf, Vec<u8>>,
}

/// Checks what a child process that has ended left, and returns it.
fn end(output: &Output, folder: &Path) -> End {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut checkpoints = BTreeMap::new();
    let mut count = 0;
    for path in paths(&folder.join("checkpoints")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == ".trainer-lock" {
            continue;
        }
        assert!(name.starts_with("step-") && !name.contains('.'), "{name} was left");
        checkpoint::verify(&path).unwrap();
        count += 1;
        for file in paths(&path)
            .into_iter()
            .filter(|file| file.extension().is_some_and(|extension| extension == "safetensors"))
        {
            checkpoints.insert(file.strip_prefix(folder).unwrap().to_owned(), fs::read(&file).unwrap());
        }
    }
    assert!((1..=KEPT[0] + KEPT[1]).contains(&count), "{count} checkpoints");
    for path in paths(folder) {
        let name = path.file_name().unwrap().to_string_lossy();
        assert!(!name.contains("writing") && !name.contains("tmp") && !name.contains("replaced"), "{name}");
    }
    End { state: fs::read_to_string(folder.join("end.json")).unwrap(), rows: rows(folder), checkpoints }
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

/// The number of bytes in a folder, without the rows that were moved aside after each kill.
fn bytes(folder: &Path) -> u64 {
    let of = |path: &PathBuf| match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => bytes(path),
        Ok(metadata) if !path.to_string_lossy().contains("before-resume") => metadata.len(),
        _ => 0,
    };
    paths(folder).iter().map(of).sum()
}

/// Names what differs between two ends.
fn difference(one: &End, other: &End) -> String {
    let mut found = Vec::new();
    for (name, differs) in [
        ("the final state", one.state != other.state),
        ("the rows of loggers", one.rows != other.rows),
        ("the names of checkpoints", one.checkpoints.keys().ne(other.checkpoints.keys())),
        ("the tensors of checkpoints", one.checkpoints != other.checkpoints),
    ] {
        if differs {
            found.push(name);
        }
    }
    found.join(", ")
}

#[test]
fn a_run_killed_at_random_moments_ends_like_an_uninterrupted_one() {
    let state = ends_like_an_uninterrupted_one("kills::trains_with_everything_on_until_killed");
    assert!(state.contains("of epoch "), "the run has not rolled back: {state}");
}

/// Kills the runs of a program at random moments, starts each again until it has ended, and returns
/// the state that all end with.
pub(crate) fn ends_like_an_uninterrupted_one(program: &str) -> String {
    let parent = scratch(program.split("::").next().unwrap()).canonicalize().unwrap();
    let [whole, killed] = ["whole", "killed"].map(|name| parent.join(name));
    fs::create_dir(&whole).unwrap();
    let log = parent.join("log");
    let begun = Instant::now();
    let mut command = watched_process(program, &whole);
    command.env("FAULTS_LOG", &log);
    let expected = end(&start(command, &whole).wait_with_output().unwrap(), &whole);
    let duration = usize::try_from(begun.elapsed().as_millis()).unwrap();
    let changes = recorded_changes(&fs::read(&log).unwrap(), &whole).len();
    let limit = 3 * bytes(&whole);

    let kills: u64 = std::env::var("TRAINER_SOAK").map_or(4, |kills| kills.parse().unwrap());
    let mut done = 0;
    let mut random = Random(88_172_645_463_325_252);
    let mut runs = 0;
    while done < kills {
        fs::create_dir(&killed).unwrap();
        runs += 1;
        loop {
            // Every other kill is at a random change to a file, the others at a random time.
            let mut command =
                if done % 2 == 0 { watched_process(program, &killed) } else { faulty_process(program) };
            if done % 2 == 0 && done < kills {
                command.env("FAULTS_KILL_AT", (1 + random.below(changes / 6)).to_string());
            }
            let mut child = start(command, &killed);
            if done % 2 == 1 && done < kills {
                std::thread::sleep(Duration::from_millis(random.below(duration / 2) as u64));
                if child.try_wait().unwrap().is_none() {
                    child.kill().unwrap();
                }
            }
            let output = child.wait_with_output().unwrap();
            if output.status.signal() != Some(9) {
                let end = end(&output, &killed);
                let what = difference(&end, &expected);
                assert!(what.is_empty(), "{what} differ after {done} kills: compare {parent:?}");
                let [one, other] = [&whole, &killed].map(|folder| folder.join("run.tape"));
                let tapes = trainer_formats::tape::difference(one, other).unwrap();
                assert!(
                    tapes.is_empty() && tapes.end.is_none(),
                    "after {done} kills: {tapes}compare {parent:?}"
                );
                break;
            }
            done += 1;
            let names = paths(&killed.join("checkpoints")).len();
            // Those that are kept, an unfinished one, one that is being removed, and the lock.
            assert!(names <= KEPT[0] + KEPT[1] + 3, "{names} files after {done} kills");
            assert!(bytes(&killed) <= limit, "{} bytes after {done} kills", bytes(&killed));
        }
        fs::remove_dir_all(&killed).unwrap();
    }
    println!("{done} kills in {runs} runs, {changes} changes to files in a run");
    fs::remove_dir_all(&parent).unwrap();
    expected.state
}
