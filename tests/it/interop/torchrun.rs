//! Programs under torchrun: kills and failures, after which torchrun restarts all ranks, and the
//! examples.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGKILL, SIGSTOP};
use signal_hook::low_level::raise;
use trainer::hooks::{ActivationCheckpointing, Checkpoint, Ema};
use trainer::optim::Sharded;
use trainer::prelude::*;

use crate::support::{CHILD, Random, scratch};

/// Returns a command with which torchrun starts two processes of a program, unless the options
/// contain another number.
pub(super) fn torchrun(options: &[&str], program: &Path) -> Command {
    let python = std::env::var_os("TRAINER_INTEROP").expect("`make interop` sets TRAINER_INTEROP");
    let mut command = Command::new(python);
    command.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]).args(options);
    if program.extension().is_some_and(|extension| extension == "py") {
        command.env_remove("LD_LIBRARY_PATH").arg(program);
        return command;
    }
    // Python must load its own libtorch, and the program the libtorch of these tests.
    let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let start = "export LD_LIBRARY_PATH=\"$LIBRARIES\"; exec \"$@\"";
    // A backtrace of this binary takes seconds, in which a rank that panics says nothing to the
    // others.
    command.env_remove("LD_LIBRARY_PATH").env("LIBRARIES", libraries).env("RUST_BACKTRACE", "0");
    command.args(["--no-python", "sh", "-c", start, "sh"]).arg(program);
    command
}

/// Returns a command with which torchrun starts two processes of an ignored test of this program,
/// unless the options contain another number.
pub(super) fn torchrun_test(options: &[&str], test: &str) -> Command {
    let mut command = torchrun(options, &std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(CHILD, "1");
    command
}

/// The environment variable with the folder of a run of [`child`].
const FOLDER: &str = "TRAINER_TORCHRUN_FOLDER";
/// The environment variable with the mishap of a run: `kill=10` kills one rank in each of the first
/// ten attempts, at a random moment, which in half of the attempts is within a save; `error`,
/// `panic` and `stop` happen to rank 1 in the first attempt.
const MISHAP: &str = "TRAINER_TORCHRUN_MISHAP";
/// The environment variable with the seed of the random moments.
const SEED: &str = "TRAINER_TORCHRUN_SEED";

/// The time of an event, in seconds since 1970, and its description.
#[derive(Debug, Deserialize, Serialize)]
struct Event {
    at: f64,
    what: String,
}

fn note(path: PathBuf, what: impl Into<String>) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    fs::write(path, serde_json::to_string(&Event { at, what: what.into() }).unwrap()).unwrap();
}

/// A run of 200 steps, each over three batches, with dropout, divided gradients, a checkpoint after
/// every four, in the background if the seed is odd, and the mishap that the environment describes.
#[test]
#[ignore = "run by the other tests under torchrun"]
fn trains_until_a_mishap() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = PathBuf::from(folder);
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let rank = number("RANK");
    let attempt = number("TORCHELASTIC_RESTART_COUNT");
    let mishap = std::env::var(MISHAP).unwrap_or_default();
    let mut random = Random((1 + number(SEED) * 1000 + attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let kills = mishap.strip_prefix("kill=").map_or(0, |kills| kills.parse().unwrap());
    let victim = random.below(usize::try_from(number("WORLD_SIZE")).unwrap()) as u64;
    let is_in_save = random.below(2) == 1;
    let delay = Duration::from_micros(random.below(if is_in_save { 20_000 } else { 200_000 }) as u64);
    let mut save = random.below(5);
    let mut will_be_killed = attempt < kills && rank == victim;
    let mut will_fail = kills == 0 && attempt == 0 && rank == 1;
    let marker = folder.join(format!("mishap-{attempt}"));

    tch::set_num_threads(1);
    tch::manual_seed(1);
    let vars = nn::VarStore::new(Device::Cpu);
    let net = nn::seq_t()
        .add(nn::linear(vars.root() / "fc1", 4, 32, Default::default()).named(vars.root() / "fc1"))
        .add_fn_t(|hidden, train| hidden.relu().dropout(0.2, train))
        .add(nn::linear(vars.root() / "fc2", 32, 3, Default::default()));
    let task = Supervised::new(vars, net, |logits: &Tensor, labels: &Tensor| {
        logits.cross_entropy_for_logits(labels)
    });
    let rows = |count: i64| {
        let inputs = Tensor::arange(count * 4, (Kind::Float, Device::Cpu)).view([count, 4]).sin();
        let labels = Tensor::arange(count, (Kind::Int64, Device::Cpu)).remainder(3);
        InMemory::new((inputs, labels)).unwrap().batch_size(16)
    };
    let failed = folder.join(format!("failed-{attempt}-{rank}"));
    let killed = marker.clone();
    let kill = move || {
        let marker = killed.clone();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            note(marker, "kill");
            raise(SIGKILL).unwrap();
        });
    };
    let kill_in_save = kill.clone();
    let mut will_be_killed_in_save = will_be_killed && is_in_save;
    will_be_killed &= !is_in_save;
    let checkpoint = Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(4));
    let mut trainer = Trainer::builder(task)
        .optimizer(Sharded::new(AdamW::new(1e-2)).gradients(true))
        .accumulate(3)
        .clip_grad_norm(0.5)
        .hook(Ema::new(0.9))
        .hook(ActivationCheckpointing::new("fc1"))
        .discover(Discover::None)
        .epochs(100)
        .seed(7)
        .hook(checkpoint.in_background(number(SEED) % 2 == 1))
        .resume(Resume::Auto)
        .on::<BeforeStep>("mishap", move |cx| {
            std::thread::sleep(Duration::from_millis(2));
            if std::mem::take(&mut will_be_killed) {
                kill();
            }
            if cx.phase() == Phase::Train
                && cx.counters().batches_seen == 25
                && std::mem::take(&mut will_fail)
            {
                note(marker.clone(), mishap.clone());
                match &*mishap {
                    "error" => return Err(Error::msg("the disk is on fire")),
                    "panic" => panic!("the disk is on fire"),
                    "stop" => raise(SIGSTOP).unwrap(),
                    _ => {}
                }
            }
            Ok(())
        })
        .on::<BeforeSaveCheckpoint>("kill", move |_| {
            if save == 0 && std::mem::take(&mut will_be_killed_in_save) {
                kill_in_save();
            }
            save = save.saturating_sub(1);
        })
        .on::<AfterError>("reason", move |cx| note(failed.clone(), cx.error().to_string()))
        .build()
        .unwrap();
    match trainer.fit(&mut rows(96).shuffle(3), Some(&mut rows(20))) {
        Ok(_) => trainer.save_weights(folder.join(format!("weights-{rank}.safetensors"))).unwrap(),
        Err(_) => std::process::exit(1),
    }
}

/// Runs [`child`] under torchrun until it has completed.
fn completed(count: usize, folder: &Path, mishap: &str, seed: u64) -> Output {
    let options = ["--max-restarts", "12", "--nproc-per-node", &count.to_string()];
    let mut command = torchrun_test(&options, "interop::torchrun::trains_until_a_mishap");
    command.env(FOLDER, folder).env(MISHAP, mishap).env(SEED, seed.to_string());
    let output = command.env("TRAINER_RANK_TIMEOUT", "5").output().unwrap();
    assert!(output.status.success(), "{mishap}, seed {seed}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns the weights of each rank.
fn weights(count: usize, folder: &Path) -> Vec<Vec<u8>> {
    let of_rank = |rank| fs::read(folder.join(format!("weights-{rank}.safetensors"))).unwrap();
    (0..count).map(of_rank).collect()
}

/// Returns the weights of a run without mishaps, the same on all ranks.
fn uninterrupted(count: usize, test: &str) -> Vec<u8> {
    let folder = scratch(&format!("torchrun-uninterrupted-{test}-{count}"));
    completed(count, &folder, "", 0);
    let weights = weights(count, &folder);
    assert!(weights.iter().all(|other| *other == weights[0]));
    fs::remove_dir_all(&folder).unwrap();
    weights.into_iter().next().unwrap()
}

fn event(path: &Path) -> Option<Event> {
    Some(serde_json::from_str(&fs::read_to_string(path).ok()?).unwrap())
}

/// Returns, for each attempt with a mishap, the error that the other rank reports, and the number
/// of seconds between the mishap and the report; without a report, an empty text and 0.
fn reasons(count: usize, folder: &Path) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for attempt in 0..=12 {
        let Some(mishap) = event(&folder.join(format!("mishap-{attempt}"))) else { continue };
        let mut failed =
            (0..count).filter_map(|rank| event(&folder.join(format!("failed-{attempt}-{rank}"))));
        // The rank that failed reports its own error, which names no other rank.
        let other = failed.find(|event| event.what.contains("rank"));
        all.push(other.map_or((String::new(), 0.0), |event| (event.what, event.at - mishap.at)));
    }
    all
}

#[test]
#[ignore = "run by `make interop`"]
fn ranks_that_are_killed_at_random_moments_end_with_bit_identical_weights() {
    let expected = [2, 4].map(|count| uninterrupted(count, "kills"));
    let kills = std::env::var("TRAINER_SOAK").map_or(4, |kills| kills.parse().unwrap());
    let mut killed = 0;
    let mut slowest = 0.0_f64;
    let mut silent = 0;
    for seed in 0.. {
        // Two and four ranks, each with checkpoints in the foreground and in the background.
        let nth = seed as usize / 2 % 2;
        let count = [2, 4][nth];
        let folder = scratch("torchrun-kills");
        completed(count, &folder, &format!("kill={}", (kills - killed).min((kills / 4).clamp(1, 10))), seed);
        let reasons = reasons(count, &folder);
        killed += reasons.len();
        for (reason, seconds) in reasons {
            // The other rank does not report a kill after the training, or one that torchrun
            // follows with its own signal at once.
            silent += usize::from(reason.is_empty());
            slowest = slowest.max(seconds);
            if seconds > 2.0 {
                println!("{seconds:.2} s: {reason}");
            }
            assert!(
                reason.is_empty() || reason.contains("lost contact with the other ranks"),
                "seed {seed}: {reason}"
            );
            assert!(seconds < 10.0, "seed {seed}: {reason}");
        }
        assert!(weights(count, &folder).iter().all(|weights| *weights == expected[nth]), "seed {seed}");
        fs::remove_dir_all(&folder).unwrap();
        println!(
            "{killed} kills; the other rank reported them after at most {slowest:.2} s, except {silent}"
        );
        if killed >= kills {
            break;
        }
    }
    assert!(silent * 10 <= killed, "{silent} of {killed} kills were not reported");
}

#[test]
#[ignore = "run by `make interop`"]
fn the_other_rank_reports_a_failed_or_hung_rank_and_both_restart() {
    let expected = uninterrupted(2, "mishaps");
    for (mishap, reason, limit) in [
        ("error", "another rank ended with an error: rank 1: ", 10.0),
        ("panic", "another rank ended with an error: rank 1: ", 10.0),
        ("stop", "rank 1 did not respond", 15.0),
    ] {
        let folder = scratch("torchrun-failure");
        completed(2, &folder, mishap, 0);
        let found = reasons(2, &folder);
        let [(text, seconds)] = &found[..] else { panic!("{mishap}: {found:?}") };
        assert!(text.contains(reason), "{mishap}: {text}");
        assert!(mishap == "stop" || text.contains("the disk is on fire"), "{mishap}: {text}");
        assert!(*seconds < limit, "{mishap}: {seconds} s");
        assert!(weights(2, &folder).iter().all(|weights| *weights == expected), "{mishap}");
        println!("{mishap}: the other rank ended after {seconds:.2} s");
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// Returns the number that follows the last occurrence of a text.
fn number_after(output: &str, text: &str) -> f64 {
    let rest = output.rsplit_once(text).unwrap_or_else(|| panic!("no `{text}` in:\n{output}")).1;
    rest.split_whitespace().next().unwrap().trim_end_matches(';').parse().unwrap()
}

#[test]
#[ignore = "run by `make interop`"]
fn the_examples_print_and_save_once_and_learn_equally_well_in_two_processes() {
    let folder = scratch("torchrun-examples");
    let binaries = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    // Dropout and noise differ between the ranks, so the results are not bit-identical.
    for (name, table, result, tolerance) in [
        ("digits", "| Lifecycle Point ", "validation set: accuracy ", 1.5),
        ("digits_gan", "From: digits_gan", "trained generator ", 0.15),
        ("gpt", "metric ", "perplexity of unseen sonnets: ", 0.3),
    ] {
        let run = |mut command: Command, to: &str| {
            let folder = folder.join(to);
            fs::create_dir_all(&folder).unwrap();
            let output = command.current_dir(folder).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{name}, {to}: {error}");
            String::from_utf8(output.stdout).unwrap()
        };
        let binary = binaries.join(name);
        let one = run(Command::new(&binary), "one");
        let two = run(torchrun(&[], &binary), "two");
        assert_eq!(two.matches(table).count(), 1, "{name}: {two}");
        let one = number_after(&one, result);
        let two = number_after(&two, result);
        println!("{name}: {one} in one process, {two} in two");
        assert!((one - two).abs() <= tolerance, "{name}: {one} in one process, {two} in two");
    }
    for to in ["one", "two"] {
        let mut runs: Vec<_> = fs::read_dir(folder.join(to).join("runs")).unwrap().flatten().collect();
        runs.sort_by_key(fs::DirEntry::file_name);
        let names: Vec<_> = runs.iter().map(fs::DirEntry::file_name).collect();
        assert_eq!(names, ["0001", "gpt"], "{to}");
        let rows = |name: &str| fs::read_to_string(runs[usize::from(name.ends_with('l'))].path().join(name));
        for file in ["values.csv", "records.jsonl"] {
            assert!(rows(file).unwrap().lines().count() > 10, "{to}, {file}");
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}
