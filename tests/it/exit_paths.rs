//! Exit paths: a stop, cancel, error or panic at every moment of every entry point runs cleanup
//! once and leaves the trainer usable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::moment::{MomentInfo, MomentKind};
use trainer::prelude::*;
use trainer::{CancelToken, OnSignal, TrainerBuilder};

use crate::model;
use crate::support::{device, scratch};

/// The ways to end a run early.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Exit {
    Stop,
    Cancel,
    Error,
    Panic,
}

/// One case: an exit at a moment in a phase, in a hook or in code that the loop calls.
#[derive(Clone, Debug, PartialEq)]
struct Case {
    moment: &'static str,
    phase: Phase,
    exit: Exit,
    /// Whether the hooks of `after_error`, `after_cancel` and `teardown` fail too.
    untidy: bool,
}

/// State that the hooks share: the case, and what they observed.
#[derive(Default)]
struct Scene {
    case: Option<Case>,
    happened: bool,
    /// Operations whose around hooks have begun and not ended.
    open: Vec<&'static str>,
    cleanup: Vec<&'static str>,
    /// Every moment that was reached, with its phase.
    reached: Vec<(&'static str, Phase)>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Scene>>, CancelToken);

impl Shared {
    /// Records that a moment is reached, and causes the exit if the case says so. Returns whether
    /// the hook should request a stop.
    fn reach(&self, moment: &'static str, phase: Phase) -> Result<bool> {
        let mut scene = self.0.lock().unwrap();
        scene.reached.push((moment, phase));
        if matches!(moment, "after_error" | "after_cancel" | "teardown") {
            scene.cleanup.push(moment);
            assert!(records_gradients(), "gradients are recorded during cleanup");
            if scene.case.as_ref().is_some_and(|case| case.untidy) {
                return Err(Error::msg(format!("untidy at {moment}")));
            }
        }
        let here = |case: &&Case| case.moment == moment && case.phase == phase;
        let Some(exit) = scene.case.as_ref().filter(here).map(|case| case.exit) else { return Ok(false) };
        if std::mem::replace(&mut scene.happened, true) {
            return Ok(false);
        }
        drop(scene);
        match exit {
            Exit::Stop => return Ok(true),
            Exit::Cancel => self.1.cancel(),
            Exit::Error => return Err(Error::msg(format!("failure at {moment}"))),
            Exit::Panic => {
                // A panic within tch's own `no_grad`, which does not restore the mode.
                tch::no_grad(|| panic!("failure at {moment}"));
            }
        }
        Ok(false)
    }
}

/// Requests a stop, at moments that allow it.
macro_rules! request_stop {
    ($cx:ident, stops, $stop_requested:expr) => {
        if $stop_requested {
            $cx.stop("requested");
        }
    };
    ($cx:ident, cannot_stop, $stop_requested:expr) => {
        assert!(!$stop_requested, "no stop can be requested here")
    };
}

macro_rules! moments {
    (points { $($Point:ident $point:ident $stops:ident,)* } operations { $($Op:ident $op:ident $Hook:ident $op_stops:ident,)* }) => {
        /// Every point and operation, and whether a hook can request a stop there.
        const MOMENTS: &[(&str, bool)] = &[
            $((stringify!($point), stringify!($stops).len() == "stops".len()),)*
            $((stringify!($op), stringify!($op_stops).len() == "stops".len()),)*
        ];

        $(
            struct $Hook(Shared);

            #[hook]
            impl $Hook {
                fn around(&mut self, cx: &mut Cx<$Op>, next: Next<$Op>) -> Result<Done> {
                    let stop_requested = self.0.reach(stringify!($op), cx.phase())?;
                    request_stop!(cx, $op_stops, stop_requested);
                    self.0.0.lock().unwrap().open.push(stringify!($op));
                    let scene = Arc::clone(&self.0.0);
                    next.run_then(cx, move |_| {
                        let innermost = scene.lock().unwrap().open.pop();
                        assert_eq!(innermost, Some(stringify!($op)), "the innermost around hook ends first");
                    })
                }
            }
        )*

        fn with_hooks<T: Task>(builder: TrainerBuilder<T>, shared: &Shared) -> TrainerBuilder<T> {
            // Points inside of the backward pass fire on the CPU only.
            let fires = |point| device() == Device::Cpu || !["before_module_backward", "after_module_grads"].contains(&point);
            $(let builder = if !fires(stringify!($point)) {
                builder
            } else {
                let shared = shared.clone();
                builder.on::<$Point>(stringify!($point), move |cx| {
                    let stop_requested = shared.reach(stringify!($point), cx.phase())?;
                    request_stop!(cx, $stops, stop_requested);
                    Ok(())
                })
            };)*
            $(let builder = builder.hook($Hook(shared.clone()));)*
            builder
        }
    };
}

moments! {
    points {
        Setup setup cannot_stop,
        BeforeFit before_fit stops, AfterFit after_fit cannot_stop,
        BeforeSanityCheck before_sanity_check stops, AfterSanityCheck after_sanity_check stops,
        BeforeEpoch before_epoch stops, AfterEpoch after_epoch stops,
        BeforeTrainEpoch before_train_epoch stops, AfterTrainEpoch after_train_epoch stops,
        BeforeStep before_step stops, AfterStep after_step stops,
        BeforeTransfer before_transfer stops, AfterTransfer after_transfer stops,
        BeforePred before_pred stops, AfterPred after_pred stops,
        BeforeModuleForward before_module_forward stops, AfterModuleForward after_module_forward stops,
        BeforeModuleBackward before_module_backward stops, AfterModuleGrads after_module_grads stops,
        AfterModuleBackward after_module_backward stops,
        BeforeLoss before_loss stops, AfterLoss after_loss stops,
        BeforeBackward before_backward stops, AfterBackward after_backward stops,
        BeforeOptStep before_opt_step stops, AfterOptStep after_opt_step stops,
        BeforeZeroGrad before_zero_grad stops, AfterZeroGrad after_zero_grad stops,
        BeforeValid before_valid stops, AfterValid after_valid stops,
        BeforeTest before_test cannot_stop, AfterTest after_test cannot_stop,
        BeforePredict before_predict cannot_stop, AfterPredict after_predict cannot_stop,
        BeforePredictStep before_predict_step cannot_stop, AfterPredictStep after_predict_step cannot_stop,
        AfterRecord after_record cannot_stop, AfterCancel after_cancel cannot_stop, AfterError after_error cannot_stop, Teardown teardown cannot_stop,
    }
    operations {
        Fit fit AroundFit stops, SanityCheck sanity_check AroundSanityCheck stops, Epoch epoch AroundEpoch stops,
        TrainEpoch train_epoch AroundTrainEpoch stops, Step step AroundStep stops,
        Transfer transfer AroundTransfer stops, Pred pred AroundPred stops, ModuleForward module_forward AroundModuleForward stops,
        Loss loss AroundLoss stops,
        Backward backward AroundBackward stops, OptStep opt_step AroundOptStep stops,
        ZeroGrad zero_grad AroundZeroGrad stops, Valid valid AroundValid stops, Test test AroundTest cannot_stop,
        Predict predict AroundPredict cannot_stop, PredictStep predict_step AroundPredictStep cannot_stop,
    }
}

/// A task that can also cause the exit.
struct Failing<T>(T, Shared);

impl<T: Task> Failing<T> {
    fn reach(&self, moment: &'static str, batch_is_of: Option<Phase>) -> Result<()> {
        // The task does not receive the phase, so use the phase of the most recent moment.
        let phase = batch_is_of.or(self.1.0.lock().unwrap().reached.last().map(|(_, phase)| *phase));
        self.1.reach(moment, phase.unwrap_or(Phase::Train)).map(drop)
    }
}

impl<T: Task> Task for Failing<T> {
    type Batch = T::Batch;
    type Pred = T::Pred;

    fn vars(&self) -> &nn::VarStore {
        self.0.vars()
    }
    fn pred(&mut self, batch: &T::Batch, mode: Mode) -> Result<T::Pred> {
        let train = (mode == Mode::Train).then_some(Phase::Train);
        self.reach("the task's pred", train)?;
        self.0.pred(batch, mode)
    }
    fn loss(&mut self, pred: &T::Pred, batch: &T::Batch) -> Result<Tensor> {
        self.reach("the task's loss", None)?;
        self.0.loss(pred, batch)
    }
}

/// Returns a loader of three batches, which can cause the exit at the second.
fn loader(shared: &Shared, phase: Phase) -> impl Loader<(Tensor, Tensor)> + use<> {
    let shared = shared.clone();
    from_fn(move |_| {
        let shared = shared.clone();
        let batches: Vec<_> = model::rows(12).batches(0, 0).unwrap().collect();
        batches.into_iter().enumerate().map(move |(nth, batch)| {
            if nth == 1 {
                shared.reach("the loader", phase)?;
            }
            batch
        })
    })
}

const ENTRIES: [&str; 4] = ["fit", "validate", "test", "predict"];

fn enter(
    trainer: &mut Trainer<impl Task<Batch = (Tensor, Tensor)>>,
    entry: &str,
    shared: &Shared,
) -> Result<Option<String>> {
    match entry {
        "fit" => {
            let mut train = loader(shared, Phase::Train);
            let mut valid = loader(shared, Phase::Valid);
            trainer.fit(&mut train, Some(&mut valid)).map(|summary| summary.stopped)
        }
        "validate" => trainer.validate(&mut loader(shared, Phase::Valid)).map(|summary| summary.stopped),
        "test" => trainer.test(&mut loader(shared, Phase::Test)).map(|summary| summary.stopped),
        _ => trainer.predict(&mut loader(shared, Phase::Predict)).map(|_| None),
    }
}

fn build(shared: &Shared) -> Trainer<impl Task<Batch = (Tensor, Tensor)> + use<>> {
    let task = Failing(model::named_task(), shared.clone());
    let builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let builder = builder.epochs(2).accumulate(2).sanity_batches(2).validate_every(Every::Steps(2));
    let builder = builder.cancel_token(shared.1.clone()).on_signal(OnSignal::Ignore);
    with_hooks(builder, shared).build().unwrap()
}

fn records_gradients() -> bool {
    Tensor::ones([1], (Kind::Float, device())).set_requires_grad(true).square().requires_grad()
}

/// Runs an entry point with one case, and checks the result, the cleanup and the state of the
/// trainer.
fn check(entry: &str, case: &Case) {
    let shared = Shared::default();
    let mut trainer = build(&shared);
    shared.0.lock().unwrap().case = Some(case.clone());
    let outcome = catch_unwind(AssertUnwindSafe(|| enter(&mut trainer, entry, &shared)));
    let context = format!("{entry}, {case:?}");

    let scene = std::mem::take(&mut *shared.0.lock().unwrap());
    assert!(scene.happened, "{context}: the moment was not reached");
    let is_last = case.moment == "teardown";
    let text = format!("failure at {}", case.moment);
    let cleanup = match (case.exit, &outcome) {
        (Exit::Stop, Ok(Ok(reason))) => {
            assert_eq!(reason.as_deref(), (entry == "fit").then_some("requested"), "{context}");
            vec!["teardown"]
        }
        (Exit::Stop, Ok(Err(error))) if case.untidy => {
            assert!(error.to_string().contains("untidy at teardown"), "{context}: {error}");
            vec!["teardown"]
        }
        (Exit::Cancel, Ok(Ok(_))) if is_last => vec!["teardown"], // nothing was left to cancel
        (Exit::Cancel, Ok(Err(error))) => {
            assert!(matches!(error, Error::Cancelled(_)), "{context}: {error}");
            vec!["after_cancel", "teardown"]
        }
        (Exit::Error, Ok(Err(error))) => {
            assert!(error.to_string().contains(&text), "{context}: {error}");
            if is_last { vec!["teardown"] } else { vec!["after_error", "teardown"] }
        }
        (Exit::Panic, Err(panic)) => {
            assert_eq!(panic.downcast_ref::<String>(), Some(&text), "{context}");
            if is_last { vec!["teardown"] } else { vec!["after_error", "teardown"] }
        }
        (_, outcome) => {
            panic!("{context}: ended with {:?}", outcome.as_ref().map(|result| result.as_ref().map(drop)))
        }
    };
    assert_eq!(scene.cleanup, cleanup, "{context}");
    assert!(scene.open.is_empty(), "{context}: around hooks have all ended");
    if let Ok(Err(error)) = &outcome
        && case.untidy
        && case.exit != Exit::Stop
    {
        let later: Vec<_> = error.cleanup().iter().map(ToString::to_string).collect();
        assert_eq!(later.len(), scene.cleanup.len(), "{context}: {error}");
        assert!(
            later
                .iter()
                .zip(&scene.cleanup)
                .all(|(error, moment)| error.contains(&format!("untidy at {moment}")))
        );
    }
    assert!(records_gradients(), "{context}: gradients are recorded again");
    assert!(
        trainer.vars().parameters().all(|var| !var.tensor.grad().defined()),
        "{context}: no gradient is left"
    );

    // Every entry point of the trainer can be used again.
    shared.1.reset();
    let epochs = trainer.counters().epoch;
    for entry in ENTRIES {
        *shared.0.lock().unwrap() = Scene::default();
        enter(&mut trainer, entry, &shared)
            .unwrap_or_else(|error| panic!("{context}: then {entry}: {error}"));
        let scene = shared.0.lock().unwrap();
        assert_eq!(scene.cleanup, ["teardown"], "{context}: then {entry}");
    }
    assert!(trainer.counters().epoch > epochs || entry != "fit", "{context}: the next fit continues");
    assert!(trainer.vars().iter().all(|var| var.tensor.isfinite().all().int64_value(&[]) == 1), "{context}");
}

/// Returns the distinct moments and phases that an entry point reaches.
fn reached_by(entry: &str) -> Vec<(&'static str, Phase)> {
    let shared = Shared::default();
    enter(&mut build(&shared), entry, &shared).unwrap();
    let mut reached = std::mem::take(&mut shared.0.lock().unwrap().reached);
    let mut seen = Vec::new();
    reached.retain(|at| {
        !seen.contains(at) && {
            seen.push(*at);
            true
        }
    });
    reached
}

/// Checks an exit at every moment of every entry point. Returns the number of cases.
fn check_all(exit: Exit, untidy: bool) -> usize {
    let mut cases = 0;
    for entry in ENTRIES {
        for (moment, phase) in reached_by(entry) {
            let can_stop = MOMENTS.iter().any(|(own, stops)| *own == moment && *stops) && entry == "fit";
            let is_cleanup = moment == "teardown" && untidy; // `teardown` fails in any case
            if (exit == Exit::Stop && !can_stop) || is_cleanup {
                continue;
            }
            check(entry, &Case { moment, phase, exit, untidy });
            cases += 1;
        }
    }
    cases
}

#[test]
fn the_table_of_exit_paths_covers_every_moment() {
    for MomentInfo { name: point, kind, .. } in model::points() {
        let operation = if *kind == MomentKind::Before { &point["before_".len()..] } else { point };
        let is_listed = |name: &str| MOMENTS.iter().any(|(moment, _)| *moment == name);
        // `eval` runs only within a hook that calls it, whose errors are those of the hook: see
        // `eval.rs`.
        let is_elsewhere = operation.contains("checkpoint") || operation.ends_with("eval");
        assert!(is_elsewhere || is_listed(point) && is_listed(operation), "{point}");
    }
    let mut reached: Vec<_> =
        ENTRIES.iter().flat_map(|entry| reached_by(entry)).map(|(moment, _)| moment).collect();
    reached.extend(["after_cancel", "after_error"]);
    let missing: Vec<_> = MOMENTS.iter().filter(|(moment, _)| !reached.contains(moment)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_panic_while_the_last_checkpoint_is_written_propagates_after_teardown() {
    let folder = scratch("exit-paths-save");
    let ended = Arc::new(Mutex::new(0));
    let count = Arc::clone(&ended);
    let saved = folder.clone();
    let mut trainer = model::builder()
        .on::<AfterFit>("save", move |cx| cx.save_checkpoint(&saved))
        .on::<BeforeSaveCheckpoint>("panics", |_| tch::no_grad(|| panic!("no space")))
        .on::<Teardown>("count", move |_| {
            assert!(records_gradients(), "gradients are recorded during cleanup");
            *count.lock().unwrap() += 1;
        })
        .build()
        .unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut model::rows(8), None))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"no space"));
    assert_eq!(*ended.lock().unwrap(), 1);
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn a_stop_at_any_moment_ends_the_run_and_runs_teardown_once() {
    assert!(check_all(Exit::Stop, false) > 60);
}

#[test]
fn after_cancel_fires_once_for_a_cancellation_at_any_moment() {
    assert!(check_all(Exit::Cancel, false) > 120);
    assert!(check_all(Exit::Cancel, true) > 120);
}

#[test]
fn after_error_fires_once_for_an_error_at_any_moment() {
    assert!(check_all(Exit::Error, false) > 120);
    assert!(check_all(Exit::Error, true) > 120);
}

#[test]
fn after_error_fires_once_for_a_panic_at_any_moment() {
    assert!(check_all(Exit::Panic, false) > 120);
}
