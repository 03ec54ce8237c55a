//! Recorded runs of other trainers, translated by the tables of `trainer::migration` and compared
//! with runs of this trainer: the same moments in the same order, except for the differences that
//! the pages state.

use std::sync::{Arc, Mutex};

use trainer::migration::{POINTS, Row};
use trainer::prelude::*;
use trainer::{TrainerBuilder, at};

use crate::model;

/// A recorded event of another trainer, and its moment here.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    theirs: &'static str,
    moment: &'static str,
    filter: &'static str,
}

/// The moments and phases of a run with this trainer.
type Ours = Vec<(&'static str, Phase)>;

type Recording = Arc<Mutex<Ours>>;

fn row(page: &str, name: &str) -> Row {
    let row = POINTS.iter().find(|row| row.page == page && row.theirs == name);
    *row.unwrap_or_else(|| panic!("`{name}` is not on the page `{page}`"))
}

/// A recorded run. Each change to it must be a difference that its page states.
struct Recorded {
    page: &'static str,
    events: Vec<Event>,
    /// The moments that occur in the recorded run.
    moments: Vec<&'static str>,
}

impl Recorded {
    /// Translates names with the rows of the page. Drops names without a counterpart, and merges
    /// consecutive names of one moment.
    fn new(page: &'static str, names: impl IntoIterator<Item = &'static str>) -> Self {
        let rows = names.into_iter().map(|name| row(page, name)).filter(|row| !row.moment.is_empty());
        let mut events: Vec<_> =
            rows.map(|Row { theirs, moment, filter, .. }| Event { theirs, moment, filter }).collect();
        events.dedup_by_key(|event| (event.moment, event.filter));
        let moments = events.iter().map(|event| event.moment).collect();
        Recorded { page, events, moments }
    }

    /// Applies a change to the events with this name. Panics unless the page states the difference
    /// and the change affects these events only.
    fn differs(mut self, name: &str, says: &str, change: impl FnOnce(&mut Vec<Event>)) -> Self {
        let stated = row(self.page, name).differs;
        assert!(stated.contains(says), "of `{name}` the page `{}` states: {stated}", self.page);
        let before = self.events.clone();
        change(&mut self.events);
        assert_ne!(self.events, before, "`{name}` does not differ");
        let others = |events: &[Event]| {
            events.iter().filter(|event| event.theirs != name).cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(&self.events), others(&before), "only `{name}` differs");
        self
    }

    fn equals(self, mut ours: Ours) {
        let filtered =
            |moment: &str| self.events.iter().any(|event| event.moment == moment && !event.filter.is_empty());
        let written = |moment: &str, filter: &str| match filter {
            "" => moment.to_owned(),
            _ => format!("{moment}, {filter}"),
        };
        ours.retain(|(moment, _)| self.moments.contains(moment));
        let ours = ours.iter().map(|(moment, phase)| match filtered(moment) {
            true => written(moment, &format!("only = {phase}")),
            false => written(moment, ""),
        });
        let theirs = self.events.iter().map(|event| written(event.moment, event.filter));
        assert_eq!(theirs.collect::<Vec<_>>(), ours.collect::<Vec<_>>());
    }
}

/// Returns a change that removes the events with this name.
fn removed(name: &str) -> impl FnOnce(&mut Vec<Event>) {
    move |events| events.retain(|event| event.theirs != name)
}

/// Returns a change that moves each event with this name to directly after the next event with a
/// name in `behind`.
fn delayed(name: &str, behind: &[&str]) -> impl FnOnce(&mut Vec<Event>) {
    move |events| {
        for nth in (0..events.len()).rev().filter(|&nth| events[nth].theirs == name).collect::<Vec<_>>() {
            let distance = events[nth..].iter().position(|event| behind.contains(&event.theirs)).unwrap();
            events[nth..=nth + distance].rotate_left(1);
        }
    }
}

/// Returns a change that assigns the events with this name in the sanity check to the phase
/// `sanity`.
fn checked_before_training(name: &str) -> impl FnOnce(&mut Vec<Event>) {
    move |events| {
        let end = events.iter().position(|event| event.theirs == "on_sanity_check_end").unwrap();
        for event in events[..end].iter_mut().filter(|event| event.theirs == name) {
            event.filter = "only = sanity";
        }
    }
}

macro_rules! recording_hooks {
    (points: $($point:ident)*; operations: $($operation:ident)*;) => {
        /// A hook around each operation.
        #[allow(non_camel_case_types)]
        mod around {
            use trainer::prelude::*;
            $(
                pub(super) struct $operation(pub(super) super::Recording);

                #[hook]
                impl $operation {
                    #[hook]
                    fn record(
                        &mut self,
                        cx: &mut Cx<trainer::at::$operation>,
                        next: Next<trainer::at::$operation>,
                    ) -> Result<Done> {
                        self.0.lock().unwrap().push((stringify!($operation), cx.phase()));
                        next.run(cx)
                    }
                }
            )*
        }

        /// Adds hooks that record every moment.
        fn with_recording_hooks<T: Task>(builder: TrainerBuilder<T>, recording: &Recording) -> TrainerBuilder<T> {
            $(
                let note = Arc::clone(recording);
                let builder = builder.on::<at::$point>(stringify!($point), move |cx| {
                    note.lock().unwrap().push((stringify!($point), cx.phase()));
                });
            )*
            builder $(.hook(around::$operation(Arc::clone(recording))))*
        }
    };
}

// Without the moments of checkpoints and of cancellation, which these runs do not reach.
recording_hooks! {
    points: setup teardown after_error before_fit after_fit before_sanity_check after_sanity_check before_epoch after_epoch
        before_train_epoch after_train_epoch before_valid after_valid before_test after_test before_step after_step
        before_transfer after_transfer after_pred after_loss before_backward after_backward before_opt_step after_opt_step
        before_zero_grad;
    operations: transfer pred backward opt_step zero_grad;
}

/// Returns the moments of a fit of one epoch, with `batches` batches each of training and
/// validation.
fn record_fit(batches: i64, sanity_batches: u64) -> Ours {
    let recording = Recording::default();
    let mut trainer =
        with_recording_hooks(model::builder().sanity_batches(sanity_batches), &recording).build().unwrap();
    trainer.fit(&mut model::rows(4 * batches), Some(&mut model::rows(4 * batches))).unwrap();
    std::mem::take(&mut *recording.lock().unwrap())
}

fn record_test(batches: i64) -> Ours {
    let recording = Recording::default();
    let mut trainer = with_recording_hooks(model::builder(), &recording).build().unwrap();
    trainer.test(&mut model::rows(4 * batches)).unwrap();
    std::mem::take(&mut *recording.lock().unwrap())
}

#[test]
fn a_fit_matches_the_recorded_trace_of_trainer_tools() {
    let text = include_str!("../traces/trainer_tools_fit.txt");
    let names = text.lines().map(|line| line.trim_start().split([' ', '/', '(']).next().unwrap());
    Recorded::new("trainer_tools", names).equals(record_fit(2, 0));
}

/// Reads a trace of Lightning: methods of callbacks, `CB.…`, and of the module, `LM.…`.
fn lightning_trace(text: &'static str) -> Recorded {
    let names = text.lines().map(|line| line.split(['.', ' ']).nth(1).unwrap());
    Recorded::new("lightning", names)
}

/// Applies the differences that the page states for the callbacks of `fit`.
fn with_lightning_fit_differences(recorded: Recorded, update: &str) -> Recorded {
    let sanity = "There in the sanity check too, which is a separate phase here";
    recorded
        .differs("on_train_start", "There after the sanity check, here before it", removed("on_train_start"))
        .differs("on_validation_batch_start", sanity, checked_before_training("on_validation_batch_start"))
        .differs("on_validation_batch_end", sanity, checked_before_training("on_validation_batch_end"))
        .differs(
            "on_before_zero_grad",
            "There before the backward pass, here after the optimizer step",
            delayed("on_before_zero_grad", &[update]),
        )
        .differs("on_save_checkpoint", "Only where a checkpoint is requested", removed("on_save_checkpoint"))
}

/// Applies the differences in the transfer of a batch to the device, which is part of the step
/// here.
fn with_lightning_step_differences(mut recorded: Recorded) -> Recorded {
    let batch_start = ["on_train_batch_start", "on_validation_batch_start", "on_test_batch_start"];
    for (name, behind) in [
        ("on_before_batch_transfer", &batch_start[..]),
        ("transfer_batch_to_device", &["on_before_batch_transfer"]),
        ("on_after_batch_transfer", &["transfer_batch_to_device"]),
    ] {
        recorded =
            recorded.differs(name, "There before `on_…_batch_start`, here after it", delayed(name, behind));
    }
    recorded
}

#[test]
fn a_fit_matches_the_recorded_callback_trace_of_lightning() {
    let recorded = lightning_trace(include_str!("../traces/lightning_fit_callbacks.txt"));
    with_lightning_fit_differences(recorded, "on_before_optimizer_step").equals(record_fit(2, 2));
}

#[test]
fn a_fit_matches_the_recorded_callback_and_module_trace_of_lightning() {
    let recorded = lightning_trace(include_str!("../traces/lightning_fit_full.txt")).differs(
        "optimizer_step",
        "There it begins before the forward pass, which its closure runs; here it is only the update",
        delayed("optimizer_step", &["on_before_optimizer_step"]),
    );
    let zero_grad = "There before the backward pass, here after the optimizer step";
    with_lightning_step_differences(with_lightning_fit_differences(recorded, "optimizer_step"))
        .differs("optimizer_zero_grad", zero_grad, delayed("optimizer_zero_grad", &["on_before_zero_grad"]))
        .differs(
            "validation_step",
            "There in the sanity check too, which is a separate phase here",
            checked_before_training("validation_step"),
        )
        .equals(record_fit(2, 2));
}

#[test]
fn a_test_matches_the_recorded_trace_of_lightning() {
    let recorded = lightning_trace(include_str!("../traces/lightning_test_full.txt"));
    with_lightning_step_differences(recorded).equals(record_test(2));
}

#[test]
fn a_fit_matches_the_recorded_trace_of_mmengine() {
    let text = include_str!("../traces/mmengine_train.txt");
    let names = text.lines().map(|line| line.trim_start().split([' ', '(']).next().unwrap());
    Recorded::new("mmengine", names)
        .differs(
            "before_save_checkpoint",
            "Only where a checkpoint is requested",
            removed("before_save_checkpoint"),
        )
        .equals(record_fit(2, 0));
}

#[test]
fn a_fit_matches_the_documented_training_loop_of_fastai() {
    let text = include_str!("../traces/fastai_show_training_loop.txt");
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("- "))
        .map(|line| line.split([' ', ':']).next().unwrap())
        .collect();
    // "CBs same as train batch"
    let at = |name: &str| names.iter().position(|known| *known == name).unwrap();
    let batch = at("before_batch")..=at("after_batch");
    let same = at("**CBs");
    let batch = names[batch].to_owned();
    names.splice(same..=same, batch);

    let mut recorded = Recorded::new("fastai", names);
    let in_training =
        "Only in training, as there, although `show_training_loop` says that validation has the same";
    for name in ["before_backward", "before_step", "after_step"] {
        recorded = recorded.differs(name, in_training, |events| {
            let valid = events.iter().position(|event| event.theirs == "before_validate").unwrap();
            let after = events.split_off(valid);
            events.extend(after.into_iter().filter(|event| event.theirs != name));
        });
    }
    recorded
        .differs(
            "after_cancel_fit",
            "There after a `CancelFitException`, though `show_training_loop` lists it always",
            removed("after_cancel_fit"),
        )
        .equals(record_fit(1, 0));
}

#[test]
fn migration_pages_list_all_points_of_mmengine_and_trainer_tools() {
    let stages = include_str!("../traces/mmengine_hook_table.txt").lines().skip(1);
    let stages: Vec<_> = stages.filter_map(|line| line.strip_suffix(':')).collect();
    assert_eq!(stages.len(), 22);
    for stage in stages {
        assert!(!row("mmengine", stage).moment.is_empty(), "{stage}");
    }

    let text = include_str!("../traces/trainer_tools_describe_hooks.txt");
    let table = text.split("\n\n").next().unwrap().lines().skip(3);
    let points: Vec<_> = table
        .filter_map(|line| line.split('|').nth(1))
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
        .collect();
    assert_eq!(points.len(), 11);
    let ours: Vec<_> = model::points().map(|point| point.name).collect();
    let places = points.iter().map(|point| {
        assert_eq!(row("trainer_tools", point).moment, *point, "the names are equal");
        ours.iter().position(|known| known == point)
    });
    assert!(places.is_sorted(), "the order is the same");
}

/// A point with its counters.
#[derive(Debug, PartialEq)]
struct Counted {
    point: String,
    epoch: u64,
    batch_idx: u64,
    optimizer_steps: u64,
    samples: u64,
}

#[test]
fn counters_match_trainer_tools() {
    let text = include_str!("../traces/trainer_tools_fit.txt");
    // Indented lines are operations, which have no counters.
    let lines = text.lines().filter(|line| !line.starts_with(' '));
    let theirs: Vec<_> = lines
        .map(|line| {
            let field = |name: &str| {
                let start = line.find(&format!("{name}=")).unwrap() + name.len() + 1;
                line[start..].split([' ', ']']).next().unwrap().parse().unwrap()
            };
            Counted {
                point: line.split_whitespace().next().unwrap().to_owned(),
                epoch: field("epoch"),
                batch_idx: field("batch_idx"),
                optimizer_steps: field("opt_step"),
                samples: field("samples"),
            }
        })
        .collect();

    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut builder = model::builder();
    macro_rules! count {
        ($($point:ident)*) => {$({
            let seen = Arc::clone(&seen);
            builder = builder.on::<at::$point>(stringify!($point), move |cx| {
                let Counters { epoch, batch_idx, optimizer_steps, samples_seen: samples, .. } = cx.counters();
                let point = stringify!($point).into();
                seen.lock().unwrap().push(Counted { point, epoch, batch_idx, optimizer_steps, samples });
            });
        })*};
    }
    count! { before_fit before_epoch before_step after_backward after_step before_valid after_epoch after_fit }
    let mut trainer = builder.build().unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();

    let mut ours = std::mem::take(&mut *seen.lock().unwrap());
    let says = "The `batch_idx` counts in validation too; there it stays 0 from the first validation batch until training continues";
    assert!(row("trainer_tools", "after_step").differs.contains(says));
    let valid = theirs.iter().position(|counted| counted.point == "before_valid").unwrap() + 1;
    let counted: Vec<_> = ours[valid..].iter().map(|counted| counted.batch_idx).collect();
    assert_eq!(counted, [0, 1, 1, 2, 2, 2], "in validation; then the training batches of the epoch");
    for counted in &mut ours[valid..] {
        counted.batch_idx = 0;
    }
    assert_eq!(ours, theirs);
}
