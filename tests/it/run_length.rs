//! The length of a run: one count of optimizer steps for schedules, limits and intervals.

use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::checkpoint::Resume;
use trainer::data::from_fn;
use trainer::hooks::{Checkpoint, EarlyStopping, FieldSchedule, HyperparameterSchedule};
use trainer::prelude::*;
use trainer::schedule::{Cosine, Linear};

use crate::model::{builder, rows};
use crate::support::{child_process, device, scratch};

/// Takes several steps for a batch, as PPO does.
struct Repeats {
    vars: nn::VarStore,
    left: Tensor,
    right: Tensor,
    /// The optimizer steps of each part for a batch.
    steps: [u64; 2],
    /// What `steps_per_batch` returns.
    says: u64,
}

fn repeats(steps: [u64; 2], says: u64) -> Repeats {
    let vars = nn::VarStore::new(device());
    let [left, right] = ["left", "right"].map(|name| (vars.root() / name).ones("weight", &[1]));
    Repeats { vars, left, right, steps, says }
}

impl Task for Repeats {
    type Batch = Tensor;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok((&self.left + &self.right) * batch)
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.square().mean(Kind::Float))
    }
    fn steps_per_batch(&self) -> u64 {
        self.says
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let mut done = None;
        for (part, repeats) in ["left", "right"].into_iter().zip(step.task().steps) {
            for _ in 0..repeats {
                let pred = step.pred()?;
                let loss = step.loss(pred)?;
                let gradients = step.backward_of(part, loss)?;
                done = Some(step.opt_step(gradients)?);
            }
        }
        done.ok_or_else(|| Error::msg("no step"))
    }
}

fn batches(count: i64) -> InMemory<Tensor> {
    InMemory::new(Tensor::ones([count], (Kind::Float, device()))).unwrap().batch_size(1)
}

type Rates = Arc<Mutex<Vec<(String, f64)>>>;

/// Returns a trainer of two parts with a rate of 1, which records the rate of each step.
fn recorded(task: Repeats) -> (TrainerBuilder<Repeats>, Rates) {
    let rates = Rates::default();
    let seen = Arc::clone(&rates);
    let builder = Trainer::builder(task).discover(Discover::None);
    let builder = builder.optimizer_of("left", Sgd::new(1.0)).optimizer_of("right", Sgd::new(1.0));
    let builder = builder.on::<AfterOptStep>("rates", move |cx| {
        seen.lock().unwrap().push((cx.part().to_owned(), cx.lrs()[0]));
    });
    (builder, rates)
}

fn of(part: &str, rates: &Rates) -> Vec<f64> {
    let rates = rates.lock().unwrap();
    rates.iter().filter(|(own, _)| own == part).map(|(_, rate)| *rate).collect()
}

/// The rates of a line to 0 over this many steps, at these steps.
fn line(over: u32, steps: impl IntoIterator<Item = u32>) -> Vec<f64> {
    steps.into_iter().map(|step| 1.0 - f64::from(step) / f64::from(over)).collect()
}

#[test]
fn schedules_limits_and_intervals_count_the_same_steps() {
    // The steps of the parts for a batch, the steps of the run, and those of the right part.
    type Cell = ([u64; 2], u64, fn(u32) -> Vec<u32>);
    let cells: [Cell; 5] = [
        ([4, 0], 4, |_| Vec::new()),
        ([1, 1], 1, |batches| (0..batches).collect()),
        ([3, 3], 3, |batches| (0..3 * batches).collect()),
        ([5, 1], 5, |batches| (0..batches).map(|batch| 5 * batch).collect()),
        ([1, 2], 2, |batches| (0..2 * batches).collect()),
    ];
    for (steps, most, of_right) in cells {
        let counted = Arc::new(Mutex::new((0, 0)));
        let count = Arc::clone(&counted);
        let (builder, rates) = recorded(repeats(steps, most));
        let builder = builder.epochs(2).hook(HyperparameterSchedule::lr(Linear::to(0.0)));
        let builder = builder.on::<AfterOptStep>(HookOptions::named("every").every(2), move |cx| {
            if cx.part() == "left" {
                count.lock().unwrap().0 += 1;
            }
        });
        let planned = Arc::clone(&counted);
        let builder = builder.on::<BeforeFit>("planned", move |cx| {
            planned.lock().unwrap().1 = cx.plan().steps.unwrap();
        });
        let summary = builder.build().unwrap().fit(&mut batches(6), None).unwrap();
        let total = u32::try_from(12 * most).unwrap();
        assert_eq!(summary.counters.optimizer_steps, u64::from(total), "{steps:?}");
        assert_eq!(counted.lock().unwrap().1, u64::from(total), "{steps:?}");
        assert_eq!(of("right", &rates), line(total, of_right(12)), "{steps:?}");
        if steps[0] == most {
            assert_eq!(of("left", &rates), line(total, 0..total), "{steps:?}");
            assert_eq!(counted.lock().unwrap().0, total / 2, "{steps:?}");
        }
        assert_eq!(summary.warnings, Vec::<String>::new());
    }
}

#[test]
fn accumulation_max_steps_and_skipped_steps_keep_the_schedule_in_step() {
    let rates_of = |set: fn(TrainerBuilder<Repeats>) -> TrainerBuilder<Repeats>| {
        let (builder, rates) = recorded(repeats([4, 0], 4));
        let mut trainer = set(builder).hook(HyperparameterSchedule::lr(Linear::to(0.0))).build().unwrap();
        let summary = trainer.fit(&mut batches(5), None).unwrap();
        (of("left", &rates), summary.counters.optimizer_steps)
    };
    // Three windows, the last of which has one batch.
    assert_eq!(rates_of(|builder| builder.accumulate(2)), (line(12, 0..12), 12));
    // The batch that reaches the limit is completed.
    let (rates, steps) = rates_of(|builder| builder.max_steps(10));
    assert_eq!((&rates[..10], steps), (&line(10, 0..10)[..], 12));
    assert_eq!(rates[10..], [0.0, 0.0]);
    let (rates, steps) = rates_of(|builder| {
        builder.on::<BeforeStep>("skip", |cx| {
            if cx.counters().batch_idx == 1 {
                cx.skip_batch();
            }
        })
    });
    assert_eq!((rates, steps), (line(20, 0..16), 16));
}

#[test]
fn a_schedule_over_the_run_is_refused_if_a_batch_takes_more_steps_than_the_task_says() {
    let fit = |says,
               schedule: HyperparameterSchedule,
               set: fn(TrainerBuilder<Repeats>) -> TrainerBuilder<Repeats>| {
        let (builder, rates) = recorded(repeats([4, 0], says));
        let mut trainer = set(builder.hook(schedule)).build().unwrap();
        trainer.fit(&mut batches(3), None).map(|summary| (of("left", &rates), summary.warnings))
    };
    let over = HyperparameterSchedule::lr(Linear::to(0.0).over(24));
    let whole = || HyperparameterSchedule::lr(Linear::to(0.0));
    for says in [1, 3] {
        let error = fit(says, whole(), |builder| builder.epochs(2)).unwrap_err().to_string();
        let expected = "`train_step` takes more steps than `Task::steps_per_batch` returns: use a number of steps instead, \
                        `Linear::to(…).over(1000)`, or end the run with `.max_steps(…)`";
        assert!(
            error.contains("failed at before_opt_step, epoch 0, batch 0") && error.contains(expected),
            "{error}"
        );
    }
    // Each advice works, without a warning.
    let none = Vec::<String>::new();
    assert_eq!(fit(4, whole(), |builder| builder.epochs(2)).unwrap(), (line(24, 0..24), none.clone()));
    assert_eq!(fit(1, over, |builder| builder.epochs(2)).unwrap(), (line(24, 0..24), none.clone()));
    assert_eq!(fit(1, whole(), |builder| builder.max_steps(24)).unwrap(), (line(24, 0..24), none.clone()));
    let (rates, _) = fit(1, whole(), |builder| builder.epochs(2).max_steps(24)).unwrap();
    assert_eq!(rates, line(24, 0..24));
    let by_epoch = whole().by_epoch(true);
    let halves = [[1.0; 12], [0.5; 12]].concat();
    assert_eq!(fit(1, by_epoch, |builder| builder.epochs(2)).unwrap(), (halves, none.clone()));
    // Without a schedule, nothing needs the length.
    let constant = HyperparameterSchedule::lr(|_: u64| 1.0);
    assert_eq!(fit(1, constant, |builder| builder.epochs(2)).unwrap(), (vec![1.0; 24], none));
    let (builder, _) = recorded(repeats([1, 0], 0));
    let error = builder.build().unwrap().fit(&mut batches(1), None).unwrap_err().to_string();
    assert!(error.contains("`Task::steps_per_batch` returned 0: expected at least 1"), "{error}");
}

/// A hook with a field to schedule.
struct Noise(f64);

#[hook]
impl Noise {
    fn setup(&mut self, _: &mut Cx<Setup>) {}
}

#[test]
fn a_longer_run_reports_how_it_changes_a_schedule() {
    let warnings = |schedule: HyperparameterSchedule| {
        let builder = builder().epochs(2).hook(schedule).hook(Noise(0.0));
        let field = FieldSchedule::new(Linear::to(0.0).over(4), |noise: &mut Noise, value| noise.0 = value);
        let mut trainer = builder.hook(field).build().unwrap();
        assert_eq!(trainer.fit(&mut rows(8), None).unwrap().warnings, Vec::<String>::new());
        trainer.fit(&mut rows(8), None).unwrap().warnings
    };
    let expected = "the schedule of `lr` spans the run, which now has 8 steps instead of 4, and is at step 4, so `lr` \
                    changes from 0.0250 to 0.0500 instead of 0.0000; to prevent this, give the schedule its length as a number of \
                    steps, such as `.over(4)`";
    assert_eq!(warnings(HyperparameterSchedule::lr(Linear::to(0.0))), [expected]);
    let expected = "the schedule of `lr` spans the run, which now has 4 epochs instead of 2, and is at epoch 2, so `lr` \
                    changes from 0.0500 to 0.0500 instead of 0.0000; to prevent this, give the schedule its length as a number of \
                    epochs, such as `.over(2)`";
    assert_eq!(warnings(HyperparameterSchedule::lr(Linear::to(0.0)).by_epoch(true)), [expected]);
    let none = Vec::<String>::new();
    assert_eq!(warnings(HyperparameterSchedule::lr(Linear::to(0.0).over(4))), none);
    assert_eq!(warnings(HyperparameterSchedule::lr(|step: u64| 0.5_f64.powi(step as i32))), none);

    let field = FieldSchedule::new(Linear::to(0.0), |noise: &mut Noise, value| noise.0 = value);
    let mut trainer = builder().epochs(2).hook(Noise(0.0)).hook(field).build().unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    let [warning] = &trainer.fit(&mut rows(8), None).unwrap().warnings[..] else { panic!("one warning") };
    assert!(
        warning.contains("Noise` spans the run") && warning.contains("from 0.2500 to 0.5000"),
        "{warning}"
    );
}

#[test]
fn a_resume_with_more_epochs_reports_how_it_changes_a_schedule() {
    let folder = scratch("longer-schedule");
    let fit = |epochs| {
        let builder = builder().epochs(epochs).hook(Checkpoint::new(&folder)).resume(Resume::Auto);
        let mut trainer = builder.hook(HyperparameterSchedule::lr(Cosine::to(0.0))).build().unwrap();
        trainer.fit(&mut rows(8), None).unwrap().warnings
    };
    assert_eq!(fit(2), Vec::<String>::new());
    let [warning] = &fit(4)[..] else { panic!("one warning") };
    assert!(warning.contains("now has 8 steps instead of 4, and is at step 4, so `lr` changes"), "{warning}");
    assert_eq!(fit(4), Vec::<String>::new());
    std::fs::remove_dir_all(&folder).unwrap();
}

const FOLDER: &str = "TRAINER_TEST_RUN_LENGTH";

/// The program under test: a fit of five batches an epoch.
fn resumed(set: fn(TrainerBuilder<Repeats>) -> TrainerBuilder<Repeats>) -> u64 {
    let folder = std::env::var(FOLDER).unwrap();
    let (builder, _) = recorded(repeats([1, 0], 1));
    let builder = set(builder).hook(Checkpoint::new(folder)).resume(Resume::Auto);
    builder.build().unwrap().fit(&mut batches(5), None).unwrap().counters.optimizer_steps
}

#[test]
#[ignore = "run by the next test in a child process"]
fn resumes_without_anything_left() {
    let folder = std::env::var(FOLDER).unwrap();
    let again = || std::fs::remove_dir_all(&folder).unwrap();
    fn stop(builder: TrainerBuilder<Repeats>) -> TrainerBuilder<Repeats> {
        builder.epochs(9).on::<AfterStep>("stop", |cx| {
            if cx.counters().batch_idx == 3 {
                cx.stop("enough");
            }
        })
    }
    assert_eq!(resumed(|builder| builder.epochs(1).max_steps(3)), 3);
    eprintln!("--- more steps");
    assert_eq!(resumed(|builder| builder.epochs(1).max_steps(4)), 3);
    assert_eq!(resumed(|builder| builder.epochs(2).max_steps(4)), 4);
    again();
    eprintln!("--- the same");
    assert_eq!(resumed(|builder| builder.max_steps(7)), 7);
    assert_eq!(resumed(|builder| builder.max_steps(7)), 7);
    assert_eq!(resumed(|builder| builder.max_steps(8)), 8);
    again();
    eprintln!("--- an epoch that a hook ended");
    let end: fn(TrainerBuilder<Repeats>) -> TrainerBuilder<Repeats> = |builder| {
        builder.on::<AfterStep>("end", |cx| {
            if cx.counters().batch_idx == 2 {
                cx.end_epoch();
            }
        })
    };
    assert_eq!(resumed(end), 2);
    assert_eq!(resumed(end), 2);
    again();
    eprintln!("--- fewer epochs");
    assert_eq!(resumed(|builder| builder.epochs(3)), 15);
    assert_eq!(resumed(|builder| builder.epochs(2)), 15);
    assert_eq!(resumed(|builder| builder.epochs(4)), 20);
    again();
    eprintln!("--- stopped by a hook");
    assert_eq!(resumed(stop), 3);
    assert_eq!(resumed(stop), 3);
    assert_eq!(resumed(|builder| stop(builder).min_epochs(2)), 8);
}

#[test]
fn a_resume_with_nothing_left_says_what_to_raise() {
    let folder = scratch("nothing-left");
    let output =
        child_process("run_length::resumes_without_anything_left").env(FOLDER, &folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let lines: Vec<_> =
        text.lines().filter(|line| line.starts_with("nothing") || line.starts_with("---")).collect();
    let cut = |batch| {
        format!(
            "it has begun all of its epochs, and the rest of the last one, which ended after {batch} of 5 batches, is not trained"
        )
    };
    let expected = [
        "--- more steps".to_owned(),
        format!("nothing is left to train in the resumed fit: {}: set `.epochs(2)` or more", cut(3)),
        "--- the same".to_owned(),
        "nothing is left to train in the resumed fit: it has taken all of its steps: set `.max_steps(8)` or more".to_owned(),
        "--- an epoch that a hook ended".to_owned(),
        format!("nothing is left to train in the resumed fit: {}: set `.epochs(2)` or more", cut(2)),
        "--- fewer epochs".to_owned(),
        "nothing is left to train in the resumed fit: it has begun all of its epochs: set `.epochs(4)` or more".to_owned(),
        "--- stopped by a hook".to_owned(),
        "nothing is left to train in the resumed fit: a hook has stopped it (enough): set `.min_epochs(2)` or more".to_owned(),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_validation_that_never_comes_due_is_a_warning() {
    type Set = fn(TrainerBuilder<Repeats>) -> TrainerBuilder<Repeats>;
    let fit = |set: Set, task: Repeats| {
        let (builder, _) = recorded(task);
        let mut trainer = set(builder).build().unwrap();
        let summary = trainer.fit(&mut batches(5), Some(&mut batches(1))).unwrap();
        let never = summary.warnings.iter().filter(|text| text.contains("is never used"));
        let never: Vec<String> = never.cloned().collect();
        assert_eq!(never.is_empty(), summary.metrics.get("valid/loss").is_some(), "{never:?}");
        never
    };
    let once = || repeats([1, 0], 1);
    let unused: [(Set, &str); 3] = [
        (
            |builder| builder.epochs(2).validate_every(Every::Steps(11)),
            "the validation data is never used: `.validate_every(Every::Steps(11))` is first due at step 11, but the fit is \
             planned to end at step 10; use a shorter interval, such as `Every::Fraction(1.0)`, or train longer",
        ),
        (
            |builder| builder.epochs(4).max_steps(12).validate_every(Every::Epochs(4)),
            "the validation data is never used: `.validate_every(Every::Epochs(4))` is first due at the end of epoch 4, counted \
             from 1, but the fit is planned to end in epoch 3; use a shorter interval, such as `Every::Fraction(1.0)`, or train \
             longer",
        ),
        (
            |builder| builder.epochs(2).accumulate(2).validate_every(Every::Steps(7)),
            "the fit is planned to end at step 6",
        ),
    ];
    for (set, expected) in unused {
        let [warning] = &fit(set, once())[..] else { panic!("one warning: {expected}") };
        assert!(warning.contains(expected), "{warning}");
    }
    let used: [Set; 7] = [
        |builder| builder.epochs(2).validate_every(Every::Steps(10)),
        |builder| builder.epochs(4).max_steps(12).validate_every(Every::Epochs(3)),
        |builder| builder.max_steps(3),
        |builder| builder.max_steps(3).validate_every(Every::Fraction(1.0)),
        |builder| builder.epochs(2).accumulate(2).validate_every(Every::Steps(6)),
        |builder| {
            builder
                .max_time(std::time::Duration::from_millis(1))
                .min_epochs(2)
                .validate_every(Every::Steps(7))
        },
        |builder| builder.fast_dev_run(2).validate_every(Every::Steps(100)),
    ];
    for set in used {
        assert_eq!(fit(set, once()), Vec::<String>::new());
    }
    // The steps of the run count, even if the task does not say how many it takes.
    for says in [1, 4] {
        let set: Set = |builder| builder.epochs(2).validate_every(Every::Steps(30));
        assert_eq!(fit(set, repeats([4, 0], says)), Vec::<String>::new());
    }
}

/// Returns a loader of `count` rows, one a batch, that announces another number of batches.
fn announcing(announced: u64, count: usize) -> impl Loader<Tensor> {
    let batches = move |_| (0..count).map(|_| Tensor::ones([1], (Kind::Float, device())));
    from_fn(batches).with_len(announced).deterministic(true)
}

#[test]
fn a_wrong_length_of_a_loader_is_one_warning_and_the_validation_still_happens() {
    // The announced number of batches, the number of batches, the interval, and the validations of
    // an epoch.
    let cells = [
        (10, 5, Every::Fraction(1.0), 1),
        (10, 5, Every::Fraction(0.5), 1),
        (10, 7, Every::Fraction(0.5), 2),
        (3, 5, Every::Fraction(1.0), 1),
        (3, 6, Every::Fraction(1.0), 2),
        (10, 5, Every::Epochs(1), 1),
    ];
    for (announced, count, every, validations) in cells {
        let (builder, _) = recorded(repeats([1, 0], 1));
        let seen = Arc::new(Mutex::new(0));
        let valid = Arc::clone(&seen);
        let builder = builder.on::<AfterValid>("count", move |_| *valid.lock().unwrap() += 1);
        let mut trainer = builder.epochs(2).validate_every(every).build().unwrap();
        let summary = trainer.fit(&mut announcing(announced, count), Some(&mut batches(1))).unwrap();
        let context = format!("{announced}, {count}, {every:?}");
        assert_eq!(*seen.lock().unwrap(), 2 * validations, "{context}");
        let [warning] = &summary.warnings[..] else { panic!("{context}: {:?}", summary.warnings) };
        let expected = format!("the loader of `train` announced {announced} batches, from which schedules");
        assert!(
            warning.starts_with(&expected) && warning.contains(&format!("{count} in a pass")),
            "{warning}"
        );
    }
}

#[test]
fn only_a_wrong_length_is_reported() {
    type Set = fn(TrainerBuilder<Repeats>) -> TrainerBuilder<Repeats>;
    let fit = |set: Set, train: &mut dyn Loader<Tensor>, valid: &mut dyn Loader<Tensor>| {
        let (builder, _) = recorded(repeats([1, 0], 1));
        set(builder).build().unwrap().fit(train, Some(valid)).unwrap().warnings
    };
    let none = Vec::<String>::new();
    assert_eq!(fit(|builder| builder.epochs(2), &mut announcing(5, 5), &mut announcing(2, 2)), none);
    assert_eq!(fit(|builder| builder.limit_train_batches(3), &mut announcing(10, 5), &mut batches(1)), none);
    assert_eq!(fit(|builder| builder.max_steps(3), &mut announcing(10, 5), &mut batches(1)), none);
    let end: Set = |builder| {
        builder.on::<AfterStep>("end", |cx| {
            if cx.counters().batch_idx == 2 {
                cx.end_epoch();
            }
        })
    };
    assert_eq!(fit(end, &mut batches(5), &mut batches(1)), none);
    let limited = fit(|builder| builder.limit_train_batches(8), &mut announcing(10, 5), &mut batches(1));
    assert!(limited[0].contains("delivered 5 in a pass"), "{limited:?}");
    let valid = fit(|builder| builder.epochs(3), &mut batches(5), &mut announcing(4, 2));
    let expected = "the loader of `valid` announced 4 batches, but delivered 2 in a pass: correct its length (`Loader::len`, \
                    `.with_len(2)`), or leave the length out";
    assert_eq!(valid, [expected]);
    let (builder, _) = recorded(repeats([1, 0], 1));
    let tested = builder.build().unwrap().test(&mut announcing(1, 3)).unwrap().warnings;
    assert!(
        tested[0].contains("the loader of `test` announced 1 batches, but has delivered 3"),
        "{tested:?}"
    );
}

#[test]
fn a_fraction_below_one_batch_is_a_warning() {
    let fit = |every, limit: Option<i64>| {
        let mut builder = builder().epochs(2).validate_every(every);
        if let Some(limit) = limit {
            builder = builder.limit_train_batches(limit);
        }
        builder.build().unwrap().fit(&mut rows(12), Some(&mut rows(4))).unwrap().warnings
    };
    let [warning] = &fit(Every::Fraction(1e-9), None)[..] else { panic!("one warning") };
    let expected = "`Every::Fraction(1e-9)` is less than one batch of an epoch of 3, so the validation runs after each batch: \
                    use a larger fraction, or `Every::Steps(1)`";
    assert_eq!(warning, expected);
    assert_eq!(fit(Every::Steps(1), None), Vec::<String>::new());
    assert_eq!(fit(Every::Fraction(0.5), None), Vec::<String>::new());
    assert_eq!(fit(Every::Fraction(0.5), Some(1)), Vec::<String>::new());
}

#[test]
fn the_advice_for_a_packed_loader_works() {
    let texts: Vec<Vec<i64>> = (1..40).map(|length| vec![1; length % 5 + 1]).collect();
    struct Mean(nn::VarStore, Tensor);
    impl Task for Mean {
        type Batch = trainer::data::Sequences;
        type Pred = Tensor;
        fn vars(&self) -> &nn::VarStore {
            &self.0
        }
        fn pred(&mut self, _: &Self::Batch, _: Mode) -> Result<Tensor> {
            Ok(self.1.shallow_clone())
        }
        fn loss(&mut self, pred: &Tensor, _: &Self::Batch) -> Result<Tensor> {
            Ok(pred.square().sum(Kind::Float))
        }
    }
    let fit = |hook: HyperparameterSchedule, steps: Option<u64>| {
        let vars = nn::VarStore::new(device());
        let weight = vars.root().ones("weight", &[1]);
        let builder = Trainer::builder(Mean(vars, weight)).optimizer(Sgd::new(0.1)).discover(Discover::None);
        let builder = match steps {
            None => builder.epochs(2),
            Some(steps) => builder.max_steps(steps),
        };
        let mut train = DataLoader::new(texts.clone()).batch_size(2).pack(8);
        builder.hook(hook).build().unwrap().fit(&mut train, None).map(drop)
    };
    let error = fit(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(0.1)), None).unwrap_err().to_string();
    assert!(
        error
            .contains("use a number of steps instead, `.warm_up(1000)`, or end the run with `.max_steps(…)`"),
        "{error}"
    );
    fit(HyperparameterSchedule::lr(Cosine::to(0.0).over(1000).warm_up(10)), None).unwrap();
    fit(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(0.1)), Some(20)).unwrap();
    fit(HyperparameterSchedule::lr(Cosine::to(0.0).warm_up(0.5)).by_epoch(true), None).unwrap();
}

#[test]
fn early_stopping_finds_the_validation_at_the_end_of_a_short_epoch() {
    let stopping = EarlyStopping::new("valid/loss", Goal::Minimize);
    let (builder, _) = recorded(repeats([1, 0], 1));
    let mut trainer = builder.validate_every(Every::Fraction(1.0)).hook(stopping).build().unwrap();
    trainer.fit(&mut announcing(10, 5), Some(&mut batches(1))).unwrap();
    assert!(trainer.hook::<EarlyStopping>().unwrap().best().is_some());
}
