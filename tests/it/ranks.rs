//! Hooks that run on rank 0 only, and checkpoints that any rank requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plugin::rounds::{AtSight, HasSight, Sight};
use serde::{Deserialize, Serialize};
use trainer::TrainerBuilder;
use trainer::distributed::World;
use trainer::prelude::*;

use crate::model;
use crate::support::{child_process, scratch};

/// Checks the shape of the batch and returns the loss, at moments with or without `Main`.
fn loss_of<P: HasLoss + HasBatch>(cx: &Cx<P>) -> Result<f64> {
    assert_eq!(cx.batch::<(Tensor, Tensor)>()?.0.size(), [4, 4]);
    Ok(cx.loss().double_value(&[]))
}

fn seen_by<P: HasSight + HasBatch>(cx: &Cx<P>) -> i64 {
    cx.seen()
}

/// A hook on rank 0 only, at moments of the trainer and of another crate.
#[derive(Default)]
struct Reader {
    losses: usize,
    seen: i64,
}

#[hook(only = train)]
impl Reader {
    fn after_loss(&mut self, cx: &mut Cx<Main<AfterLoss>>) -> Result<()> {
        self.losses += usize::from(loss_of(cx)?.is_finite());
        cx.log("of_main", 1.0);
        Ok(())
    }

    fn sees(&mut self, cx: &mut Cx<Main<AtSight>>) {
        self.seen += seen_by(cx);
    }

    /// Makes requests that take effect on all ranks.
    #[hook(every = 3)]
    fn after_step(&mut self, cx: &mut Cx<Main<AfterStep>>) {
        assert!(cx.is_main());
        cx.stop("enough");
    }
}

#[test]
fn main_only_hooks_read_and_log_the_values_of_their_moment() {
    let mut trainer =
        model::builder().hook(Reader::default()).hook(plugin::rounds::Looks::default()).build().unwrap();
    let summary = trainer.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(summary.stopped.as_deref(), Some("enough"));
    assert_eq!(summary.metrics.get("train/of_main"), Some(1.0));
    let reader = trainer.hook::<Reader>().unwrap();
    assert_eq!((reader.losses, reader.seen), (3, 12));
}

/// A hook that `Later` is ordered after.
#[hook]
fn after_epoch(_: &mut Cx<Main<AfterEpoch>>) {}

struct Later;

#[hook(ord = -1, after = after_epoch)]
impl Later {
    fn after_epoch(&mut self, _: &mut Cx<AfterEpoch>) {}
}

fn described(rank: u32) -> trainer::HookTable {
    let builder = Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).rank(rank);
    let builder = builder
        .discover(Discover::crates(["it"]))
        .without("trainer::hooks::Checkup")
        .without("it::order::discovered");
    let builder = builder.hook(Reader::default()).hook(plugin::rounds::Looks::default()).hook(Later);
    builder.on::<Main<AfterFit>>(HookOptions::named("last").ord(3), |_| {}).build().unwrap().describe_hooks()
}

#[test]
fn the_table_marks_the_hooks_of_rank_0_and_counts_them_on_other_ranks() {
    let main = described(0);
    let other = described(1);
    assert_eq!(main.at("after_epoch"), ["it::ranks::after_epoch", "it::ranks::Later"]);
    assert_eq!(other.at("after_epoch"), ["it::ranks::Later"]);
    let of_main: Vec<_> = main.rows().filter(|row| row.main_only).map(|row| row.hook.as_str()).collect();
    assert_eq!(
        of_main,
        [
            "it::ranks::Reader",
            "it::ranks::Reader::sees",
            "it::ranks::Reader",
            "it::ranks::after_epoch",
            "last"
        ]
    );
    assert!(other.rows().all(|row| !row.main_only));
    let line = |text: &str, part: &str| {
        text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {text}")).to_owned()
    };
    let text = main.to_string();
    assert!(line(&text, "last").contains("train, rank 0"), "{text}");
    assert!(line(&text, "it::ranks::Reader").contains(", rank 0"), "{text}");
    assert!(!line(&text, "it::ranks::Later").contains("rank 0"), "{text}");
    assert!(!text.contains("This is rank"), "{text}");
    let text = other.to_string();
    assert!(text.contains("\nThis is rank 1: 5 hooks run on rank 0 only\n"), "{text}");
    let json = |table: &trainer::HookTable| serde_json::from_str::<serde_json::Value>(&table.json()).unwrap();
    assert_eq!((&json(&main)["rank"], &json(&other)["rank"]), (&0.into(), &1.into()));
}

const SCENE: &str = "TRAINER_TESTS_RANKS_SCENE";
const OUT: &str = "TRAINER_TESTS_RANKS_OUT";

/// The report of one process.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Report {
    error: Option<String>,
    /// The batches after which the operation `save_checkpoint` ran, and the names of the folders.
    saves: Vec<(u64, String)>,
    seconds: f64,
}

type Builder<T> = TrainerBuilder<T>;

/// Adds the hooks of a scene.
fn with_scene<T: Task>(scene: &str, out: &Path, builder: Builder<T>) -> Builder<T> {
    let out = out.to_owned();
    let is_second = |cx: &Cx<AfterStep>| cx.phase() == Phase::Train && cx.counters().batches_seen == 2;
    match scene {
        "collective" => builder.on::<Main<AfterStep>>("lonely", |_| World::from_env()?.barrier("lonely")),
        "ignored" => builder.on::<Main<AfterStep>>("lonely", |_| {
            let world = World::from_env()?;
            assert!(world.all_gather("one", &Tensor::from(1.0)).is_err() && world.any("one", true).is_err());
            Ok(())
        }),
        "other_rank" | "background" => builder.on::<AfterStep>("request", move |cx| {
            if cx.rank() == 1 && is_second(cx) && scene_is("background") {
                cx.save_checkpoint_in_background(out.join("one"));
            } else if cx.rank() == 1 && is_second(cx) {
                cx.save_checkpoint(out.join("one"));
            }
        }),
        "at_the_end" => builder.on::<AfterFit>("request", move |cx| {
            if cx.rank() == 1 {
                cx.save_checkpoint(out.join("one"));
            }
        }),
        "every_rank" => builder.on::<AfterStep>("request", move |cx| {
            if is_second(cx) {
                cx.save_checkpoint(out.join("one"));
                cx.save_checkpoint(out.join(format!("of-{}", cx.rank())));
            }
        }),
        "after_an_error" => builder
            .on::<Main<AfterStep>>("fail", |_| Err::<(), _>(Error::msg("the disk is on fire")))
            .on::<AfterError>("request", move |cx| cx.save_checkpoint(out.join("one"))),
        _ => panic!("{scene}"),
    }
}

fn scene_is(scene: &str) -> bool {
    std::env::var(SCENE).is_ok_and(|own| own == scene)
}

/// The program of each rank.
#[test]
#[ignore = "run by the other tests in a child process"]
fn rank() {
    let scene = std::env::var(SCENE).unwrap();
    let out = PathBuf::from(std::env::var(OUT).unwrap());
    let saves = Arc::new(Mutex::new(Vec::new()));
    let since = Instant::now();
    let saved = Arc::clone(&saves);
    let builder = model::builder().epochs(1).on::<AfterSaveCheckpoint>("saved", move |cx| {
        let name = cx.checkpoint().file_name().unwrap().to_string_lossy().into_owned();
        saved.lock().unwrap().push((cx.counters().batches_seen, name));
    });
    let result = with_scene(&scene, &out, builder)
        .build()
        .and_then(|mut trainer| trainer.fit(&mut model::rows(28), Some(&mut model::rows(8))));
    let saves = std::mem::take(&mut *saves.lock().unwrap());
    let seconds = since.elapsed().as_secs_f64();
    let report = Report { error: result.err().map(|error| error.to_string()), saves, seconds };
    let path = out.join(format!("{}.json", std::env::var("RANK").unwrap()));
    fs::write(path, serde_json::to_string(&report).unwrap()).unwrap();
}

/// Runs a scene in two processes. Returns their reports with their output on standard error, and
/// the names of the checkpoints in the folder.
fn run(scene: &str) -> (Vec<(Report, String)>, Vec<String>) {
    let (reports, names, out) = run_and_keep(scene);
    fs::remove_dir_all(&out).unwrap();
    (reports, names)
}

/// Like [`run`], but keeps the folder and also returns its path.
fn run_and_keep(scene: &str) -> (Vec<(Report, String)>, Vec<String>, PathBuf) {
    let out = scratch(&format!("ranks-{scene}"));
    let start = |rank: usize| -> Child {
        let mut command = child_process("ranks::rank");
        let meet = format!("file://{}", out.join("meet").display());
        command.env(SCENE, scene).env(OUT, &out).env("WORLD_SIZE", "2").env("RANK", rank.to_string());
        command.env("MASTER_ADDR", meet).env("TRAINER_RANK_TIMEOUT", "60");
        let log = fs::File::create(out.join(format!("{rank}.log"))).unwrap();
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    };
    let mut children = [0, 1].map(start);
    let since = Instant::now();
    for child in &mut children {
        while child.try_wait().unwrap().is_none() {
            if since.elapsed() > Duration::from_secs(180) {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let read = |name: String| fs::read_to_string(out.join(name)).unwrap_or_default();
    let report = |rank: usize| {
        let text = read(format!("{rank}.json"));
        let log = read(format!("{rank}.log"));
        (serde_json::from_str(&text).unwrap_or_else(|_| panic!("rank {rank} of `{scene}`: {log}")), log)
    };
    let reports = [0, 1].map(report).into();
    let names = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
    let names = names.filter(|path| path.join("manifest.json").is_file());
    let mut names: Vec<String> =
        names.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    (reports, names, out)
}

#[test]
fn a_collective_in_a_main_only_hook_fails_at_once() {
    let (reports, _) = run("collective");
    for (rank, (report, _)) in reports.iter().enumerate() {
        let text = report.error.as_deref().unwrap();
        assert!(text.contains("`barrier(\"lonely\")` is a collective, which all ranks must call"), "{text}");
        assert!(text.contains("lonely") && text.contains("after_step, epoch 0, batch 1"), "{text}");
        assert_eq!(text.contains("another rank ended with an error: rank 0: "), rank == 1, "{text}");
        assert!(report.seconds < 30.0, "it does not wait for the timeout");
    }
    let (reports, _) = run("ignored");
    assert!(reports.iter().all(|(report, _)| report.error.is_none()), "{reports:?}");
}

#[test]
fn a_checkpoint_that_any_rank_requests_is_written_once_by_rank_0() {
    for (scene, batch, expected) in [
        ("other_rank", 2, &["one"][..]),
        ("background", 2, &["one"]),
        ("at_the_end", 7, &["one"]),
        ("every_rank", 2, &["one", "of-0", "of-1"]),
    ] {
        let (reports, mut names) = run(scene);
        for (report, log) in &reports {
            assert_eq!(report.error, None, "{scene}: {log}");
            let own: Vec<&str> = report.saves.iter().map(|(_, name)| name.as_str()).collect();
            assert_eq!(own, expected, "{scene}");
        }
        let [first, last] = [0, 1].map(|rank| &reports[rank].0.saves);
        let is_due = |batches: u64| {
            if scene == "background" { batches >= batch } else { batches == batch }
        };
        assert!(last.iter().all(|(batches, _)| is_due(*batches)), "{scene}: {last:?}");
        assert_eq!(first, last, "{scene}: `after_save_checkpoint` fires on all ranks in the same batch");
        names.sort_by_key(|name| expected.iter().position(|known| known == name));
        assert_eq!(names, expected, "{scene}");
    }
}

#[test]
fn after_an_error_only_rank_0_writes_a_checkpoint_and_it_cannot_be_resumed_exactly() {
    let (reports, names, out) = run_and_keep("after_an_error");
    assert_eq!(names, ["one"]);
    for (rank, (report, log)) in reports.iter().enumerate() {
        assert!(report.error.as_deref().unwrap().contains("the disk is on fire"), "{report:?}");
        let warning = "rank 1 does not write this checkpoint: after an error has disconnected the ranks";
        assert_eq!(log.contains(warning), rank == 1, "{log}");
        assert_eq!(report.saves.len(), 1 - rank, "{report:?}");
    }
    let mut trainer = model::builder().epochs(1).resume(out.join("one")).build().unwrap();
    let refused = trainer.fit(&mut model::rows(28), Some(&mut model::rows(8))).unwrap_err().to_string();
    assert!(refused.contains("the checkpoint was written by rank 0 alone"), "{refused}");
    fs::remove_dir_all(&out).unwrap();
}
