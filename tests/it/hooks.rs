//! Hooks: filters, state, access to other hooks, closures and their error messages.

use std::sync::{Arc, Mutex};

use trainer::prelude::*;

use crate::model;
use crate::support::scratch;

/// Counts the calls of hooks with filters.
#[derive(Default)]
struct Calls {
    train: u64,
    valid: u64,
    every: u64,
    epochs: u64,
}

#[hook]
impl Calls {
    #[hook(only = train)]
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.train += 1;
    }
    #[hook(only(valid, test))]
    fn evaluated(&mut self, cx: &mut Cx<AfterStep>) {
        assert!(matches!(cx.phase(), Phase::Valid | Phase::Test));
        self.valid += 1;
    }
    #[hook(every = 3, only = train)]
    fn each_third(&mut self, cx: &mut Cx<BeforeStep>) {
        assert_eq!((cx.counters().batches_seen + 1) % 3, 0);
        self.every += 1;
    }
    #[hook(every = 2)]
    fn after_epoch(&mut self, cx: &mut Cx<AfterEpoch>) {
        assert_eq!(cx.counters().epoch % 2, 1);
        self.epochs += 1;
    }
}

/// Reads and changes another hook, and fails to read itself.
struct Reader {
    train: u64,
    itself: String,
}

#[hook(ord = 1)]
impl Reader {
    fn after_fit(&mut self, cx: &mut Cx<AfterFit>) -> Result<()> {
        self.train = cx.hook::<Calls>()?.train;
        cx.hook_mut::<Calls>()?.train += 100;
        self.itself = cx.hook::<Reader>().map(|_| ()).unwrap_err().to_string();
        assert!(cx.hook::<u8>().unwrap_err().to_string().contains("has no hook `u8`: add it"));
        Ok(())
    }
}

#[hook]
pub(crate) fn counted(_: &mut Cx<BeforeFit>) {}

#[test]
fn hooks_keep_state_and_are_filtered_by_phase_and_count() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .epochs(4)
        .discover(Discover::None)
        .hook(Reader { train: 0, itself: String::new() })
        .hook(Calls::default())
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(12))).unwrap();
    trainer.test(&mut model::rows(4)).unwrap();
    let calls = trainer.hook::<Calls>().unwrap();
    assert_eq!((calls.train, calls.valid, calls.every, calls.epochs), (108, 13, 2, 2));
    let reader = trainer.hook::<Reader>().unwrap();
    assert_eq!(reader.train, 8);
    assert!(reader.itself.contains("it is running or wraps a running operation"), "{}", reader.itself);
    assert!(trainer.hook::<String>().is_err());
}

/// A generic hook type.
struct Watch<F> {
    measure: F,
    last: f64,
}

#[hook]
impl<F: FnMut(&Tensor) -> f64 + Send + 'static> Watch<F> {
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
        self.last = (self.measure)(&cx.loss());
    }
}

#[test]
fn a_hook_type_can_be_generic() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Watch { measure: |loss: &Tensor| loss.double_value(&[]), last: 0.0 })
        .on::<AfterLoss>("check", |cx| assert!(cx.loss().double_value(&[]) > 0.0))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(4), None).unwrap();
    assert!(summary.metrics.get("train/loss").unwrap() > 0.0);
}

/// A helper that accepts the context of every moment at which gradients exist.
fn gradient_norm<P: HasGrads>(cx: &Cx<P>) -> f64 {
    cx.grads().map(|(_, grad)| grad.square().sum(Kind::Float).double_value(&[])).sum::<f64>().sqrt()
}

fn loss_of(cx: &Cx<AfterLoss>) -> Tensor {
    cx.loss()
}

#[test]
fn helper_functions_can_take_the_context() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterBackward>("norm", |cx| {
            let norm = gradient_norm(cx);
            cx.log("norm", norm);
        })
        .on::<AfterLoss>("loss", |cx| assert_eq!(loss_of(cx).size(), [] as [i64; 0]))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(4), None).unwrap();
    assert!(summary.metrics.get("train/norm").unwrap() > 0.0);
}

#[test]
fn a_trainer_can_move_to_another_thread() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Calls::default())
        .build()
        .unwrap();
    let summary = std::thread::spawn(move || trainer.fit(&mut model::rows(4), None)).join().unwrap().unwrap();
    assert_eq!(summary.counters.batches_seen, 1);
}

#[test]
fn closures_support_the_options_of_the_attribute() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let record = |name: &'static str| {
        let calls = Arc::clone(&calls);
        move |cx: &mut Cx<AfterStep>| {
            calls.lock().unwrap().push((name, cx.phase(), cx.counters().batches_seen));
        }
    };
    let mut trainer = model::builder()
        .on::<AfterStep>(HookOptions::named("late").ord(1).only(Phase::Train), record("late"))
        .on::<AfterStep>(HookOptions::named("second").only(Phase::Train).every(2), record("second"))
        .on::<AfterStep>(
            HookOptions::named("evaluated").only([Phase::Valid, Phase::Test]),
            record("evaluated"),
        )
        .on::<Main<AfterStep>>("main", |_| panic!("this is rank 1"))
        .rank(1)
        .build()
        .unwrap();
    let table = trainer.describe_hooks().to_string();
    assert!(table.contains("every 2 batches"), "{table}");
    trainer.fit(&mut model::rows(16), Some(&mut model::rows(4))).unwrap();
    let of = |name: &str| calls.lock().unwrap().iter().filter(|call| call.0 == name).count();
    assert_eq!((of("late"), of("second"), of("evaluated"), of("main")), (4, 2, 1, 0));
    let calls = calls.lock().unwrap();
    let second: Vec<_> = calls.iter().filter(|call| call.0 == "second").map(|call| call.2).collect();
    assert_eq!(second[1] - second[0], 2);
    let at = |name: &str| calls.iter().position(|call| call.0 == name && call.2 == second[0]).unwrap();
    assert!(at("second") < at("late"), "{calls:?}");
}

#[test]
fn a_failing_closure_is_reported_by_its_name() {
    let mut trainer = model::builder()
        .on::<AfterStep>("batch", |cx| {
            cx.batch::<u8>()?;
            Ok(())
        })
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(error.starts_with("hook `batch` (tests/it/hooks.rs:"), "{error}");
}

#[test]
fn ambiguous_closures_and_closures_that_never_run_are_refused() {
    let error = model::builder()
        .on::<AfterStep>("same", |_| {})
        .on::<BeforeStep>("same", |_| {})
        .on::<AfterStep>("same", |_| {})
        .on::<AfterStep>("", |_| {})
        .on::<Setup>(HookOptions::named("once").every(2), |_| {})
        .on::<AfterStep>(HookOptions::named("never").every(0).only([]), |_| {})
        .hook(trainer::hooks::FeatureRecorder::new("*").only([]))
        .build()
        .unwrap_err();
    insta::assert_snapshot!(model::message(&error), @r#"
    the trainer cannot be built, for 6 reasons:
    - the closure `once` cannot have `every`, because `setup` is not counted in batches, optimizer steps, epochs or records: remove `every`
    - `.every(0)` of the closure `never` at `after_step`: expected at least 1
    - `.only([])` of the closure `never` at `after_step`: expected at least one phase
    - two closures at `after_step` have the name `same` (tests/it/hooks.rs:_ and tests/it/hooks.rs:_): rename one
    - the closure at `after_step` (tests/it/hooks.rs:_) has an empty name: choose a name, which `describe_hooks` and error messages will show
    - hook `trainer::hooks::FeatureRecorder`: `.only([])`: expected at least one phase
    "#);
}

#[test]
fn a_task_type_mismatch_names_the_actual_type() {
    let mut trainer =
        model::builder().on::<AfterStep>("task", |cx| cx.task::<u8>().map(drop)).build().unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(
        error.contains("the task is a `trainer::training::task::Supervised<")
            && error.contains(", not a `u8`: use `trainer::training::task::Supervised<"),
        "{error}"
    );
}

#[test]
fn a_renamed_field_of_saved_state_is_reported_with_the_serde_attribute_to_use() {
    #[derive(serde::Serialize)]
    struct Before {
        n: u8,
    }
    #[derive(Debug, serde::Deserialize)]
    struct After {
        #[allow(dead_code)]
        count: u8,
    }
    let mut saved = trainer::checkpoint::Saved::new();
    saved.set("counter", &Before { n: 3 }).unwrap();
    let error = saved.get::<After>("counter").unwrap_err().to_string();
    assert!(
        error.ends_with(
            "::After`: Unexpected missing field named `count` in `After`; for a field that was renamed or added since, use \
             `#[serde(alias = \"…\")]` or `#[serde(default)]`"
        ),
        "{error}"
    );
}

#[test]
fn weights_can_be_loaded_from_a_checkpoint_folder() {
    use trainer::checkpoint::LoadWeights;

    let folder = scratch("weights-of-a-checkpoint");
    let first = model::builder().on::<AfterFit>("save", {
        let folder = folder.clone();
        move |cx| cx.save_checkpoint(&folder)
    });
    let mut trainer = first.epochs(1).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let mut other = model::builder().build().unwrap();
    let report = other.load_weights(&folder, &LoadWeights::new()).unwrap();
    assert_eq!(report.loaded.len(), 4);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_misspelled_resume_auto_is_reported_with_the_correct_spelling() {
    let mut trainer = model::builder().resume("Auto").build().unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(
        error.ends_with("for the folder of the `Checkpoint` hook, write `.resume(Resume::Auto)`"),
        "{error}"
    );
}

/// Counts the batches that its fields select.
struct Selective {
    every: Option<u32>,
    phases: trainer::PhaseSet,
    seen: Vec<(Phase, u64)>,
}

fn is_first_epoch<P>(cx: &Cx<P>) -> bool {
    cx.counters().epoch == 0
}

#[hook]
impl Selective {
    #[hook(every = self.every, only = self.phases)]
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        self.seen.push((cx.phase(), cx.counters().batch_idx));
    }

    #[hook(every = THIRD, when = is_first_epoch)]
    fn third(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        self.seen.push((Phase::Test, cx.counters().batches_seen)); // marks a step
        next.run(cx)
    }
}

const THIRD: usize = 3;

fn selective(every: Option<u32>, phases: &[Phase]) -> Selective {
    Selective { every, phases: trainer::PhaseSet::from_phases(phases), seen: Vec::new() }
}

#[test]
fn a_value_selects_its_interval_and_its_phases() {
    let hook = selective(Some(2), &[Phase::Train]);
    let mut trainer = model::builder().hook(hook).epochs(2).build().unwrap();
    trainer.fit(&mut model::rows(4 * 4), Some(&mut model::rows(4))).unwrap();
    let seen = &trainer.hook::<Selective>().unwrap().seen;
    let train = [2, 4, 2, 4].map(|batch| (Phase::Train, batch));
    let first = (Phase::Test, 2);
    assert_eq!(*seen, [&train[..1], &[first], &train[1..]].concat());
    assert_eq!(trainer.counters().optimizer_steps, 8, "a hook that is not due does not skip the step");

    let table = trainer.describe_hooks();
    let row = |name: &str| table.rows().find(|row| row.hook.ends_with(name)).unwrap().clone();
    assert_eq!(row("Selective").every.unwrap().0, 2);
    assert_eq!(row("Selective").phases, [Phase::Train]);
    assert_eq!(row("third").when, Some("is_first_epoch"));
    assert!(table.to_string().contains("train, every 3 steps, when is_first_epoch"), "{table}");

    let each = model::builder().hook(selective(None, &[Phase::Valid])).build().unwrap().describe_hooks();
    let row = each.rows().find(|row| row.hook.ends_with("Selective")).unwrap();
    assert_eq!((row.every, &row.phases[..]), (None, &[Phase::Valid][..]));
}

#[test]
fn selections_that_cannot_apply_are_reported_by_build() {
    let message = |hook| model::message(&model::builder().hook(hook).build().unwrap_err());
    let zero = message(selective(Some(0), &[Phase::Train]));
    assert!(
        zero.contains(
            "`every` of `it::hooks::Selective::after_step` (tests/it/hooks.rs:_) is 0: expected at least 1"
        ),
        "{zero}"
    );
    let none = message(selective(None, &[]));
    assert!(none.contains("selects no phase: add one, or remove the hook"), "{none}");
    let never = message(selective(None, &[Phase::Predict]));
    assert!(never.contains("selects the phase `predict`, which never reaches `after_step`"), "{never}");
}

mod alias {
    /// An alias with the name of the type itself.
    pub(super) type Cx = trainer::Cx<trainer::AfterStep>;
}

/// Counts its calls.
#[derive(Default)]
struct Aliased(u64);

#[hook]
impl Aliased {
    fn at_an_alias(&mut self, _: &alias::Cx) {
        self.0 += 1;
    }
    #[hook(every = (self.0 + 2))]
    fn every_other(&mut self, _: &mut alias::Cx) {
        self.0 += 10;
    }
}

#[test]
fn an_alias_named_cx_is_accepted_as_the_context() {
    let mut trainer = model::builder().hook(Aliased::default()).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(trainer.hook::<Aliased>().unwrap().0, 12);
}

/// Derives serde's traits, but only one of its fields is saved.
#[derive(Default, serde::Deserialize, serde::Serialize)]
struct PartlySaved {
    saved: u64,
    other: u64,
}

#[hook(state = self.saved)]
impl PartlySaved {
    fn after_step(&mut self, _: &Cx<AfterStep>) {
        self.saved += 1;
        self.other += 1;
    }
}

#[test]
fn saving_one_field_does_not_conflict_with_serde_derives_on_the_whole_type() {
    let folder = crate::support::scratch("partly-saved");
    let run = |at| {
        let builder = model::builder().hook(PartlySaved::default());
        let checkpoint = trainer::hooks::Checkpoint::new(&folder).every(Every::Steps(1));
        let builder = crate::support::cancelled_at(at, builder.hook(checkpoint));
        let mut trainer = builder.resume(Resume::Auto).build().unwrap();
        let result = trainer.fit(&mut model::rows(16), None);
        (result.is_ok(), trainer.hook::<PartlySaved>().map(|hook| (hook.saved, hook.other)).unwrap())
    };
    assert_eq!(run(Some(3)), (false, (3, 3)));
    assert_eq!(run(None), (true, (4, 1)));
}
