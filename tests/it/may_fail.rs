//! Hooks with the key `may_fail`: whatever fails in them, the run continues with the same result.

use std::fs;
use std::marker::PhantomData;
use std::path::Path;

use trainer::checkpoint::{Saved, State};
use trainer::hooks::Checkpoint;
use trainer::loggers::{Csv, GrowingFile, JsonLines, TensorBoard, ToFile};
use trainer::moment::AtPoint;
use trainer::prelude::*;
use trainer::{Summary, TrainerBuilder};

use crate::model::{self, builder};
use crate::support::{alone, exact_state, scratch};

/// How a hook fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Error,
    Panic,
    /// A panic while gradients are not recorded.
    WithoutGradients,
}

const ALL: [How; 3] = [How::Error, How::Panic, How::WithoutGradients];

fn fail(how: How) -> Result<()> {
    match how {
        How::Error => Err(Error::msg("the disk is on fire")),
        How::Panic => panic!("the disk is on fire"),
        How::WithoutGradients => tch::no_grad(|| panic!("the disk is on fire")),
    }
}

/// A logger that fails whenever it is called.
struct Fails<P> {
    how: How,
    at: PhantomData<fn() -> P>,
}

#[hook(writes, may_fail)]
impl<P: AtPoint> Fails<P> {
    fn at(&mut self, _: &Cx<P>) -> Result<()> {
        fail(self.how)
    }
}

type Final = Vec<(String, Vec<u64>)>;

/// Trains with validation, a roll-back and checkpoints, and then resumes.
fn train<T: Task<Batch = (Tensor, Tensor)>>(
    folder: &Path,
    with: impl Fn(TrainerBuilder<T>) -> TrainerBuilder<T>,
    new: impl Fn() -> TrainerBuilder<T>,
) -> (Final, Vec<Summary>) {
    let _ = fs::remove_dir_all(folder);
    let mut summaries = Vec::new();
    let mut state = Final::new();
    for epochs in [2, 3] {
        let builder = new()
            .epochs(epochs)
            .seed(1)
            .run_folder(folder)
            .record_every(Every::Steps(1))
            .hook(Checkpoint::in_run_folder())
            .resume(Resume::Auto)
            .on::<BeforeStep>("keep", |cx| cx.keep_state())
            .on::<AfterStep>("roll back", |cx| {
                if cx.roll_backs() == 0 && cx.counters().batches_seen == 3 {
                    cx.roll_back("once");
                }
            });
        let mut trainer = with(builder).build().unwrap();
        summaries.push(trainer.fit(&mut model::rows(16), Some(&mut model::rows(8))).unwrap());
        state = exact_state(&trainer);
    }
    (state, summaries)
}

#[test]
fn a_logger_that_fails_at_any_point_changes_nothing() {
    alone(fails_at_each_point);
}

fn fails_at_each_point() {
    let folder = scratch("may-fail");
    let (expected, _) = train(&folder, |builder| builder, builder);
    macro_rules! at {
        ($($point:ident),*) => {
            [$((stringify!($point), {
                fn add<T: Task>(builder: TrainerBuilder<T>, how: How) -> TrainerBuilder<T> {
                    builder.hook(Fails::<$point> { how, at: PhantomData })
                }
                &add as &dyn Fn(TrainerBuilder<_>, How) -> TrainerBuilder<_>
            })),*]
        };
    }
    let points = at![
        Setup,
        BeforeFit,
        BeforeEpoch,
        BeforeTrainEpoch,
        BeforeStep,
        BeforePred,
        AfterPred,
        BeforeLoss,
        AfterLoss,
        BeforeBackward,
        AfterBackward,
        BeforeOptStep,
        AfterOptStep,
        BeforeZeroGrad,
        AfterZeroGrad,
        AfterStep,
        AfterTrainEpoch,
        BeforeValid,
        AfterValid,
        AfterEpoch,
        AfterFit,
        AfterRecord,
        BeforeSaveCheckpoint,
        AfterSaveCheckpoint,
        BeforeLoadCheckpoint,
        AfterLoadCheckpoint,
        Teardown
    ];
    for (point, add) in points {
        for how in ALL {
            let (state, summaries) = train(&folder, |builder| add(builder, how), builder);
            assert!(state == expected, "{point}: {how:?}");
            let warnings = summaries.iter().flat_map(|summary| &summary.warnings);
            let own: Vec<_> = warnings.filter(|text| text.contains("the disk is on fire")).collect();
            assert!(own.iter().any(|text| text.contains("; the run continues")), "{point}: {own:?}");
            // The first failure in each entry point, and how many followed.
            assert!(own.len() <= 4, "{point}: {own:#?}");
            assert!(
                summaries.iter().any(
                    |summary| matches!(&summary.incomplete_logs[..], [log] if log.starts_with("it::may_fail::Fails"))
                ),
                "{point}"
            );
        }
    }
}

/// Where a monitor around the optimizer step fails.
#[derive(Clone, Copy, Debug)]
enum Where {
    Before,
    After,
    Skips,
}

struct Around(Where, How);

#[hook(may_fail, observes, only = train)]
impl Around {
    fn around(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        match self.0 {
            Where::Before => fail(self.1)?,
            Where::Skips => return Ok(next.skip()),
            Where::After => {}
        }
        let done = next.run(cx)?;
        fail(self.1)?;
        Ok(done)
    }
}

#[test]
fn an_operation_runs_once_whatever_a_monitor_around_it_does() {
    alone(fails_around_the_step);
}

fn fails_around_the_step() {
    let folder = scratch("may-fail-around");
    let (expected, _) = train(&folder, |builder| builder, builder);
    for place in [Where::Before, Where::After, Where::Skips] {
        for how in ALL {
            let (state, summaries) = train(&folder, |builder| builder.hook(Around(place, how)), builder);
            assert!(state == expected, "{place:?}: {how:?}");
            assert!(summaries[0].warnings.iter().any(|text| text.contains("`it::may_fail::Around::around`")));
        }
    }
}

#[test]
fn an_error_of_the_operation_is_not_that_of_the_monitor_around_it() {
    for panics in [false, true] {
        let run = || {
            let mut trainer = builder()
                .hook(Around(Where::After, How::Error))
                .on::<AfterStep>("late", |_| {})
                .on::<BeforeZeroGrad>("fails", |_| {})
                .hook(Inner(panics))
                .build()
                .unwrap();
            trainer.fit(&mut model::rows(8), None)
        };
        if panics {
            assert!(std::panic::catch_unwind(run).is_err());
        } else {
            let error = run().unwrap_err().to_string();
            assert!(error.contains("Inner::inner") && error.contains("not mine"), "{error}");
        }
    }
}

struct Inner(bool);

#[hook]
impl Inner {
    #[hook(ord = 1)]
    fn inner(&mut self, _: &mut Cx<OptStep>, _next: Next<OptStep>) -> Result<Done> {
        if self.0 { panic!("not mine") } else { Err(Error::msg("not mine")) }
    }
}

/// A logger that fails while its state is saved or loaded, or while it is dropped.
struct Stateful {
    saves: Option<How>,
    loads: Option<How>,
    drops: bool,
}

impl State for Stateful {
    fn save(&self) -> Result<Saved> {
        self.saves.map_or(Ok(()), fail)?;
        Ok(Saved::new())
    }

    fn load(&mut self, _: &Saved) -> Result<()> {
        self.loads.map_or(Ok(()), fail)
    }
}

#[hook(state, writes, may_fail)]
impl Stateful {
    fn after_record(&mut self, _: &Cx<Main<AfterRecord>>) {}
}

impl Drop for Stateful {
    fn drop(&mut self) {
        assert!(!self.drops, "the disk is on fire");
    }
}

#[test]
fn a_logger_that_fails_while_it_is_saved_loaded_or_dropped_changes_nothing() {
    alone(fails_with_its_state);
}

fn fails_with_its_state() {
    let folder = scratch("may-fail-state");
    let (expected, _) = train(&folder, |builder| builder, builder);
    let hows = || ALL.map(Some).into_iter().chain([None]);
    for (saves, loads) in hows().flat_map(|saves| hows().map(move |loads| (saves, loads))) {
        let add = |builder: TrainerBuilder<_>| builder.hook(Stateful { saves, loads, drops: true });
        let (state, _) = train(&folder, add, builder);
        assert!(state == expected, "{saves:?} {loads:?}");
    }
}

/// A logger that refuses to run.
struct Refuses;

#[hook(may_fail)]
impl Refuses {
    fn setup(&mut self, _: &Cx<Setup>) -> Result<()> {
        Err(Error::fatal("`.every(0)`: expected at least 1"))
    }
}

#[test]
fn a_fatal_error_ends_the_run() {
    let error = builder().hook(Refuses).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
    assert!(matches!(&error, Error::Hook(hook) if hook.hook == "it::may_fail::Refuses::setup"), "{error}");
    assert!(error.to_string().ends_with(": `.every(0)`: expected at least 1"), "{error}");
}

#[test]
fn a_logger_that_panicked_is_called_again_only_at_teardown_and_in_the_next_entry_point() {
    struct Counts(u64, u64);

    #[hook(may_fail)]
    impl Counts {
        fn after_step(&mut self, _: &Cx<AfterStep>) {
            self.0 += 1;
            panic!("once");
        }
        fn teardown(&mut self, _: &Cx<Teardown>) {
            self.1 += 1;
        }
    }

    let mut trainer = builder().epochs(1).hook(Counts(0, 0)).build().unwrap();
    trainer.fit(&mut model::rows(16), None).unwrap();
    assert_eq!(trainer.hook::<Counts>().map(|counts| (counts.0, counts.1)).unwrap(), (1, 1));
    trainer.validate(&mut model::rows(8)).unwrap();
    assert_eq!(trainer.hook::<Counts>().map(|counts| (counts.0, counts.1)).unwrap(), (2, 2));
}

/// Returns a builder with each kind of file logger.
fn with_files(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    let text = ToFile::in_run_folder("values.tsv", |record, out| {
        record.scalars().for_each(|(name, _)| out.extend(format!("{name}\n").bytes()));
        Ok(())
    });
    builder()
        .epochs(2)
        .seed(1)
        .run_folder(folder)
        .record_every(Every::Steps(1))
        .hook(Checkpoint::in_run_folder())
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(text)
        .hook(TensorBoard::new())
        .resume(Resume::Auto)
}

fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn nothing_is_moved_or_warned_about_by_a_resume_that_a_logger_refuses() {
    for changed in ["values.csv", "records.jsonl", "values.tsv", "events.out.tfevents.0000.trainer"] {
        for damage in ["changed", "shorter", "missing"] {
            let folder = scratch("refused-resume");
            with_files(&folder).build().unwrap().fit(&mut model::rows(16), None).unwrap();
            let path = folder.join(changed);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                "changed" => bytes[3] ^= 1,
                "shorter" => bytes.truncate(20),
                _ => {}
            }
            // All other files have rows that a resume would move aside.
            for name in ["values.csv", "records.jsonl", "values.tsv"] {
                let mut file = fs::File::options().append(true).open(folder.join(name)).unwrap();
                std::io::Write::write_all(&mut file, b"tail\n").unwrap();
            }
            if damage == "missing" {
                fs::remove_file(&path).unwrap();
            } else {
                fs::write(&path, &bytes).unwrap();
            }
            let before = entries(&folder);
            let mut trainer = with_files(&folder).epochs(3).build().unwrap();
            let error = trainer.fit(&mut model::rows(16), None).unwrap_err().to_string();
            assert!(
                error.contains(changed) && error.contains("restore it, or resume from an earlier"),
                "{error}"
            );
            assert!(!error.contains("the run continues") && !error.contains("during cleanup"), "{error}");
            assert_eq!(entries(&folder), before, "{changed} {damage}");
            let run = fs::read_to_string(folder.join("run.json")).unwrap();
            assert!(!run.contains("the run continues") && !run.contains("rows are missing"), "{run}");
        }
    }
}

#[test]
fn a_failure_of_a_strict_logger_ends_the_run() {
    let folder = scratch("strict-logger");
    let path = folder.join("log/values.csv");
    let gone = folder.join("log");
    let mut trainer = builder()
        .epochs(2)
        .hook(Csv::at(path).strict(true))
        .on::<AfterEpoch>("remove", move |_| fs::remove_dir_all(&gone).unwrap())
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(16), None).unwrap_err().to_string();
    assert!(error.contains("`Csv` failed at"), "{error}");
}

#[test]
fn rows_of_a_file_that_was_removed_truncated_or_replaced_are_reported() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("the folder is removed", |path| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
        ("the file is removed", |path| fs::remove_file(path).unwrap()),
        ("the file is truncated", |path| fs::write(path, "").unwrap()),
        ("the file is replaced", |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, "something else, and long enough to be longer than what was written before")
                .unwrap();
        }),
    ];
    for (what, harm) in harms {
        let folder = scratch("harmed-logger");
        let path = folder.join("log/values.csv");
        let of_hook = path.clone();
        let mut trainer = builder()
            .epochs(3)
            .record_every(Every::Steps(1))
            .hook(Csv::at(&path))
            .on::<AfterEpoch>("harm", move |cx| {
                if cx.counters().epoch == 1 {
                    harm(&of_hook);
                }
            })
            .build()
            .unwrap();
        let summary = trainer.fit(&mut model::rows(16), None).unwrap();
        assert_eq!(summary.incomplete_logs, [path.display().to_string()], "{what}");
        assert!(
            summary.warnings.iter().any(|text| text.contains("values.csv")),
            "{what}: {:?}",
            summary.warnings
        );
    }
}

#[test]
fn two_loggers_of_one_file_do_not_overwrite_each_other() {
    let path = scratch("two-loggers").join("values.csv");
    let mut trainer = builder()
        .epochs(2)
        .record_every(Every::Steps(1))
        .hook(Csv::at(&path))
        .hook(JsonLines::at(&path))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(16), None).unwrap();
    assert!(
        summary
            .warnings
            .iter()
            .any(|text| text.contains("another hook or program writes this file; give each its own")),
        "{:?}",
        summary.warnings
    );
    let text = fs::read_to_string(&path).unwrap();
    let header = "optimizer_steps,";
    assert!(text.starts_with(header) && text.lines().all(|line| !line.starts_with('{')), "{text}");
}

/// A hook that writes a file without the key.
struct Plain(GrowingFile);

#[hook(state = self.0)]
impl Plain {
    fn setup(&mut self, cx: &Cx<Main<Setup>>) -> Result<()> {
        self.0.begin(cx)
    }
}

#[test]
fn a_file_that_cannot_be_used_ends_the_run_of_any_hook_with_a_plain_error() {
    let file = GrowingFile::in_run_folder("x");
    let error = builder().hook(Plain(file)).build().unwrap().fit(&mut model::rows(8), None).unwrap_err();
    assert!(error.to_string().contains("`x` belongs in the run folder, but the trainer has none"), "{error}");
}
