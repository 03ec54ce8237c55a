//! The effect of a hook that skips, replaces or handles an operation: each cell of the documented
//! table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use trainer::modules::Named;
use trainer::moment::MomentKind;
use trainer::prelude::*;
use trainer::{OnSignal, TrainerBuilder};

use crate::model;
use crate::support::{device, scratch};

const TABLE: &str = include_str!("../../trainer/src/pages/operations.md");

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Skipped,
    Replaced,
    Handled,
    Failed,
}

use Outcome::{Failed, Handled, Replaced, Skipped};

impl Outcome {
    const ALL: [(Outcome, &'static str); 4] = [
        (Skipped, "skipped"),
        (Replaced, "replaced"),
        (Handled, "failed, and a hook handles it"),
        (Failed, "failed"),
    ];
}

/// The outcome that is forced on the first run of an operation. An operation within a training
/// batch is affected in the second batch of the first accumulation window.
#[derive(Clone, Copy, Debug)]
struct Fault {
    operation: &'static str,
    outcome: Outcome,
}

/// State that the hooks share: the fault to cause, and their observations.
#[derive(Default)]
struct Scene {
    fault: Option<Fault>,
    /// Whether the next forward pass of a second batch, or of the sanity check, fails.
    fails_within: bool,
    /// Whether the operation that runs next fails.
    fails_next: bool,
    /// The number of times that each point has fired.
    fired: BTreeMap<&'static str, u64>,
    /// The counters before the batch of the fault, and before the next one.
    counted: Vec<Counters>,
    /// Whether there were gradients before the next batch.
    has_grads: Option<bool>,
    /// The folder for the checkpoints.
    folder: PathBuf,
}

type Shared = Arc<Mutex<Scene>>;

/// Operations whose fault occurs within a training batch.
const OF_A_BATCH: [&str; 8] =
    ["step", "transfer", "pred", "module_forward", "loss", "backward", "opt_step", "zero_grad"];

/// Operations composed of other operations: they fail because one of those fails.
const COMPOSED: [&str; 9] =
    ["fit", "sanity_check", "epoch", "train_epoch", "step", "valid", "test", "predict", "predict_step"];

/// Returns the outcome of the fault if it occurs in this run of an operation. It occurs once.
fn take_fault(shared: &Shared, operation: &str, phase: Phase, at: Counters) -> Option<Outcome> {
    let mut scene = shared.lock().unwrap();
    let fault = scene.fault.filter(|fault| fault.operation == operation)?;
    let expected = match operation {
        _ if OF_A_BATCH.contains(&operation) => phase == Phase::Train && (at.epoch, at.batch_idx) == (0, 1),
        "valid" => phase == Phase::Valid,
        "predict_step" => at.batch_idx == 1,
        _ => true,
    };
    expected.then(|| {
        scene.fault = None;
        fault.outcome
    })
}

/// Lets the operation `O` fail, inside of the other hooks around it.
struct Fails<O>(Shared, PhantomData<fn() -> O>);

macro_rules! operations {
    ($($Hook:ident $Op:ident $op:ident |$cx:ident| $replacement:expr;)*) => {
        const OPERATIONS: &[&str] = &[$(stringify!($op)),*];

        $(
            struct $Hook(Shared);

            #[hook]
            impl $Hook {
                fn around(&mut self, cx: &mut Cx<$Op>, next: Next<$Op>) -> Result<Done> {
                    fn replacement($cx: &mut Cx<$Op>) -> Result<()> {
                        $replacement
                    }
                    let name = stringify!($op);
                    match take_fault(&self.0, name, cx.phase(), cx.counters()) {
                        None => next.run(cx),
                        Some(Skipped) => Ok(next.skip()),
                        Some(Replaced) => next.replace(cx, replacement),
                        Some(fault) => {
                            let mut scene = self.0.lock().unwrap();
                            if COMPOSED.contains(&name) {
                                scene.fails_within = true;
                            } else {
                                scene.fails_next = true;
                            }
                            drop(scene);
                            if fault == Failed {
                                return next.run(cx);
                            }
                            // The hook sets the output that the operation requires.
                            next.run_or(cx, |cx, _| match name {
                                "transfer" | "pred" | "module_forward" | "loss" => replacement(cx),
                                _ => Ok(()),
                            })
                        }
                    }
                }
            }

            #[hook(ord = 1)]
            impl Fails<$Op> {
                fn fail(&mut self, cx: &mut Cx<$Op>, next: Next<$Op>) -> Result<Done> {
                    if std::mem::take(&mut self.0.lock().unwrap().fails_next) {
                        next.replace(cx, |_| Err("on purpose"))
                    } else {
                        next.run(cx)
                    }
                }
            }
        )*

        fn with_hooks<T: Task>(builder: TrainerBuilder<T>, shared: &Shared) -> TrainerBuilder<T> {
            $(
                let builder = builder
                    .hook($Hook(Arc::clone(shared)))
                    .hook(Fails::<$Op>(Arc::clone(shared), PhantomData));
            )*
            builder
        }
    };
}

type Rows = (Tensor, Tensor);

operations! {
    AroundFit Fit fit |_cx| Ok(());
    AroundSanityCheck SanityCheck sanity_check |_cx| Ok(());
    AroundEpoch Epoch epoch |_cx| Ok(());
    AroundTrainEpoch TrainEpoch train_epoch |_cx| Ok(());
    AroundStep Step step |_cx| Ok(());
    AroundTransfer Transfer transfer |cx| {
        let (inputs, labels) = cx.batch::<Rows>()?;
        let batch = (inputs.shallow_clone(), labels.shallow_clone());
        cx.set_batch(batch)
    };
    AroundPred Pred pred |cx| {
        let inputs = cx.batch::<Rows>()?.0.shallow_clone();
        let pred = inputs.apply(&cx.task::<Linear>()?.layer);
        cx.set_pred(pred)
    };
    AroundModuleForward ModuleForward module_forward |cx| {
        let rows = cx.input().size()[0];
        cx.set_output(Tensor::ones([rows, 3], (Kind::Float, device())).set_requires_grad(true))
    };
    AroundLoss Loss loss |cx| {
        let loss = cx.pred::<Tensor>()?.cross_entropy_for_logits(&cx.batch::<Rows>()?.1);
        cx.set_loss(loss);
        Ok(())
    };
    AroundBackward Backward backward |cx| cx.backward(&cx.scaled_loss());
    AroundOptStep OptStep opt_step |cx| cx.optimizer_mut()?.step();
    AroundZeroGrad ZeroGrad zero_grad |cx| cx.optimizer_mut()?.zero_grad();
    AroundValid Valid valid |_cx| Ok(());
    AroundTest Test test |_cx| Ok(());
    AroundPredict Predict predict |_cx| Ok(());
    AroundPredictStep PredictStep predict_step |cx| cx.set_pred(Tensor::zeros([4, 3], (Kind::Float, device())));
    AroundSaveCheckpoint SaveCheckpoint save_checkpoint |_cx| Ok(());
    AroundLoadCheckpoint LoadCheckpoint load_checkpoint |_cx| Ok(());
}

/// Returns whether a point belongs to `operation` or to an operation that runs within it.
fn runs_within(operation: &str, point: &str) -> bool {
    let name = point.strip_prefix("before_").or(point.strip_prefix("after_")).unwrap_or(point);
    let step = [
        "transfer",
        "pred",
        "module_forward",
        "module_backward",
        "loss",
        "backward",
        "opt_step",
        "zero_grad",
    ];
    match operation {
        _ if name == operation => true,
        "step" => step.contains(&name),
        "pred" | "loss" => ["module_forward", "module_backward"].contains(&name),
        "backward" => name == "module_backward",
        "predict_step" => ["transfer", "pred", "module_forward"].contains(&name),
        "predict" => ["predict_step", "transfer", "pred", "module_forward"].contains(&name),
        "train_epoch" | "valid" | "test" | "sanity_check" => {
            ["step", "save_checkpoint"].contains(&name)
                || step.contains(&name)
                || operation == "sanity_check" && name == "valid"
        }
        "epoch" => {
            ["train_epoch", "valid", "step", "save_checkpoint"].contains(&name) || step.contains(&name)
        }
        "fit" => !["test", "predict", "predict_step"].contains(&name),
        _ => false,
    }
}

struct Linear {
    vars: nn::VarStore,
    layer: Named<nn::Linear>,
}

impl Task for Linear {
    type Batch = Rows;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &Rows, _: Mode) -> Result<Tensor> {
        Ok(inputs.apply(&self.layer))
    }
    fn loss(&mut self, pred: &Tensor, (_, labels): &Rows) -> Result<Tensor> {
        Ok(pred.cross_entropy_for_logits(labels))
    }
}

fn builder(shared: &Shared) -> TrainerBuilder<Linear> {
    tch::set_num_threads(1);
    let vars = nn::VarStore::new(device());
    let layer = nn::linear(vars.root() / "fc", 4, 3, Default::default()).named("fc");
    tch::no_grad(|| {
        for (_, mut tensor) in vars.variables() {
            let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, device()));
            tensor.copy_(&(values.sin() * 0.3).view_as(&tensor));
        }
    });
    let builder = Trainer::builder(Linear { vars, layer })
        .optimizer(AdamW::new(0.05))
        .discover(Discover::None)
        .on_signal(OnSignal::Ignore)
        .epochs(2)
        .accumulate(2)
        .sanity_batches(1);
    let builder = with_hooks(count_points(builder, shared), shared);
    let before = Arc::clone(shared);
    let after = Arc::clone(shared);
    let within = Arc::clone(shared);
    builder
        .on::<AfterPred>("fail", move |cx| {
            let mut scene = within.lock().unwrap();
            // The sanity check has one batch.
            let fails = scene.fails_within && (cx.counters().batch_idx == 1 || cx.phase() == Phase::Sanity);
            scene.fails_within &= !fails;
            if fails { Err(Error::msg("on purpose")) } else { Ok(()) }
        })
        .on::<BeforeStep>("look", move |cx| {
            let mut scene = before.lock().unwrap();
            let Counters { epoch, batch_idx, .. } = cx.counters();
            if cx.phase() == Phase::Train && epoch == 0 && (1..=2).contains(&batch_idx) {
                scene.counted.push(cx.counters());
                scene.has_grads = Some(cx.vars().parameters().any(|var| var.tensor.grad().defined()));
            }
            // Within an accumulation window: after the batch that follows a fault in a batch, and
            // again in the next epoch.
            if cx.phase() == Phase::Train && batch_idx == 2 {
                let folder = scene.folder.join(format!("epoch-{epoch}"));
                drop(scene);
                cx.save_checkpoint(folder);
            }
        })
        .on::<AfterError>("save", move |cx| {
            let folder = after.lock().unwrap().folder.join("error");
            if cx.phase() != Phase::Test && cx.phase() != Phase::Predict {
                cx.save_checkpoint(folder);
            }
        })
}

/// Counts how often each point fires.
fn count_points(builder: TrainerBuilder<Linear>, shared: &Shared) -> TrainerBuilder<Linear> {
    macro_rules! count {
        ($($Point:ident)*) => {{
            $(let builder = {
                let shared = Arc::clone(shared);
                builder.on::<$Point>(stringify!($Point), move |_| {
                    let name = <$Point as trainer::moment::Moment>::INFO.name;
                    *shared.lock().unwrap().fired.entry(name).or_default() += 1;
                })
            };)*
            builder
        }};
    }
    count!(
        BeforeFit AfterFit BeforeSanityCheck AfterSanityCheck BeforeEpoch AfterEpoch BeforeTrainEpoch AfterTrainEpoch
        BeforeStep AfterStep BeforeTransfer AfterTransfer BeforePred AfterPred BeforeModuleForward AfterModuleForward AfterModuleBackward BeforeLoss AfterLoss
        BeforeBackward AfterBackward BeforeOptStep AfterOptStep BeforeZeroGrad AfterZeroGrad BeforeValid AfterValid
        BeforeTest AfterTest BeforePredict AfterPredict BeforePredictStep AfterPredictStep
        BeforeSaveCheckpoint AfterSaveCheckpoint BeforeLoadCheckpoint AfterLoadCheckpoint
    )
}

/// The results of a run.
struct Results {
    error: Option<String>,
    scene: Scene,
    step: Counters,
    preds: usize,
    parameters: Vec<Tensor>,
}

/// Trains, tests and predicts; `resume` is the checkpoint that the training resumes from.
fn run(fault: Option<Fault>, folder: PathBuf, resume: Option<PathBuf>) -> Results {
    let shared = Shared::default();
    *shared.lock().unwrap() = Scene { fault, folder, ..Scene::default() };
    let builder = builder(&shared);
    let builder = match resume {
        Some(checkpoint) => builder.resume(checkpoint),
        None => builder,
    };
    let mut trainer = builder.build().unwrap();
    let result = trainer
        .fit(&mut model::rows(16), Some(&mut model::rows(8)))
        .and_then(|_| trainer.test(&mut model::rows(8)))
        .and_then(|_| trainer.predict(&mut model::rows(8)));
    let (error, preds) = match result {
        Ok(preds) => (None, preds.len()),
        Err(error) => (Some(error.to_string()), 0),
    };
    let mut scene = std::mem::take(&mut *shared.lock().unwrap());
    if scene.counted.len() == 1 {
        scene.counted.push(trainer.counters());
        scene.has_grads = Some(trainer.vars().parameters().any(|var| var.tensor.grad().defined()));
    }
    let parameters = trainer.vars().parameters().map(|var| var.tensor.copy()).collect();
    Results { error, scene, step: trainer.counters(), preds, parameters }
}

/// Runs with a fault and returns the row of the table.
fn table_row(
    operation: &'static str,
    outcome: Outcome,
    title: &str,
    expected: &Results,
    folder: &Path,
) -> String {
    let path = folder.join(format!("{operation}-{outcome:?}"));
    let checkpoint = (operation == "load_checkpoint").then(|| folder.join("undisturbed/epoch-0"));
    let found = run(Some(Fault { operation, outcome }), path.clone(), checkpoint.clone());
    let count = |of: &Results, point: &str| of.scene.fired.get(point).copied().unwrap_or_default();
    let is_resumed = checkpoint.is_some();

    let run_ends = if found.error.is_some() { "ends" } else { "continues" };
    let own = format!("after_{operation}");
    let own_count = if is_resumed { 1 } else { count(expected, &own) };
    let after = if count(&found, &own) == own_count { "fires" } else { "silent" };
    let silent: Vec<_> = model::points()
        .map(|point| point.name)
        .filter(|point| !runs_within(operation, point) && count(&found, point) < count(expected, point))
        .map(|point| point.trim_start_matches("before_").trim_start_matches("after_"))
        .collect();
    let mut silent: Vec<_> = silent.into_iter().map(|name| format!("`{name}`")).collect();
    silent.dedup();
    let silent = match (found.error.is_some(), silent.is_empty(), is_resumed) {
        (true, ..) => "all that follows".to_owned(),
        (_, true, _) | (_, _, true) => "–".to_owned(),
        _ => silent.join(", "),
    };

    let mut counts = Vec::new();
    let mut grads = "–";
    if OF_A_BATCH.contains(&operation) {
        let [before, after] = found.scene.counted[..] else {
            panic!("{operation} {outcome:?}: the batch was not reached")
        };
        if after.batches_seen > before.batches_seen {
            assert_eq!(after.samples_seen, before.samples_seen + 4);
            counts.push("batch");
        }
        if after.optimizer_steps > before.optimizer_steps {
            counts.push("optimizer step");
        }
        assert!(found.error.is_some() || after.batch_idx == before.batch_idx + 1, "batch_idx advances");
        grads = if found.scene.has_grads == Some(true) { "kept" } else { "none" };
    } else if ["epoch", "train_epoch"].contains(&operation) {
        counts.extend((count(&found, "before_epoch") == 2).then_some("epoch"));
    } else if operation == "predict_step" {
        counts.extend((found.preds == 2).then_some("prediction"));
    } else if is_resumed {
        // A resumed fit does not fire `before_fit`.
        counts.push(match (count(&found, "before_fit"), found.error.is_some()) {
            (_, true) => "nothing",
            (0, _) => "restored",
            _ => "the fit begins anew",
        });
    } else {
        counts.push("–");
    }
    let counts = if counts.is_empty() { "nothing".to_owned() } else { counts.join(", ") };

    // Whether a run resumes exactly from a checkpoint after the fault.
    let of_batch = OF_A_BATCH.contains(&operation);
    let path = match found.error {
        Some(_) => path.join("error"),
        None => path.join(if of_batch || operation == "save_checkpoint" { "epoch-0" } else { "epoch-1" }),
    };
    let saved = if ["test", "predict", "predict_step"].contains(&operation) || !path.exists() {
        "none"
    } else {
        let resumed = run(None, folder.join("resumed"), Some(path));
        match &resumed.error {
            Some(error) if error.contains("cannot resume exactly") => "refused",
            Some(error) => panic!("{operation} {outcome:?}: {error}"),
            None => {
                assert_eq!(
                    (resumed.step, resumed.parameters == found.parameters),
                    (found.step, true),
                    "{operation} {outcome:?}"
                );
                "exact"
            }
        }
    };
    format!("| `{operation}` | {title} | {run_ends} | {after} | {silent} | {counts} | {grads} | {saved} |")
}

#[test]
fn the_documented_table_of_operations_matches_real_runs() {
    let folder = scratch("operations");
    let expected = run(None, folder.join("undisturbed"), None);
    assert!(expected.error.is_none(), "{:?}", expected.error);
    let mut table = String::new();
    for operation in OPERATIONS {
        for (outcome, title) in Outcome::ALL {
            writeln!(table, "{}", table_row(operation, outcome, title, &expected, &folder)).unwrap();
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let documented: Vec<_> = TABLE.lines().filter(|line| line.starts_with("| `")).collect();
    let found: Vec<_> = table.lines().collect();
    for (found, documented) in found.iter().zip(&documented) {
        assert_eq!(
            found, documented,
            "actual row on the left, documented row on the right; the whole table:\n{table}"
        );
    }
    assert_eq!(found.len(), documented.len(), "the whole table:\n{table}");
}

#[test]
fn the_table_of_operations_lists_every_operation() {
    let points = model::points().filter(|point| point.kind == MomentKind::Before).map(|point| point.name);
    // `eval` runs only within a hook that calls it, to which it returns a result: see `eval.rs`.
    let declared: Vec<_> =
        points.filter_map(|point| point.strip_prefix("before_")).filter(|name| *name != "eval").collect();
    let mut listed = OPERATIONS.to_vec();
    listed.sort_unstable();
    let mut declared = declared.clone();
    declared.sort_unstable();
    assert_eq!(listed, declared);
}
