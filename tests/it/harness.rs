//! `testing::Harness`: closures of a test in a real run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use trainer::hooks::Checkpoint;
use trainer::prelude::*;
use trainer::testing::Harness;

use crate::model;
use crate::support::scratch;

/// Counts the optimizer steps, and records whether `teardown` fired.
#[derive(Default)]
struct Steps {
    taken: u64,
    is_torn_down: bool,
}

#[hook]
impl Steps {
    fn after_opt_step(&mut self, _: &mut Cx<AfterOptStep>) {
        self.taken += 1;
    }
    fn teardown(&mut self, _: &mut Cx<Teardown>) {
        self.is_torn_down = true;
    }
}

#[test]
fn a_closure_runs_at_its_point_once_and_returns_its_value() {
    let mut calls = 0;
    let batch = Harness::small()
        .epochs(3)
        .nth(5)
        .at(|cx: &mut Cx<AfterBackward>| {
            calls += 1;
            assert!(cx.grad("fc2.bias")?.norm().double_value(&[]) > 0.0);
            Ok((cx.counters().epoch, cx.counters().batch_idx))
        })
        .unwrap();
    assert_eq!((batch, calls), ((1, 1), 1));
}

#[test]
fn closures_may_borrow_from_the_test_and_are_called_every_time() {
    let mut losses = Vec::new();
    let mut epochs = 0;
    let outcome = Harness::small()
        .hook(Steps::default())
        .epochs(2)
        .on::<AfterLoss>(|cx| losses.push((cx.phase(), cx.loss().double_value(&[]))))
        .on::<AfterEpoch>(|_| {
            epochs += 1;
            Ok(())
        })
        .run()
        .unwrap();
    assert_eq!(outcome.summary().counters.batches_seen, 8);
    assert_eq!(outcome.trainer.hook::<Steps>().unwrap().taken, 8);
    let of = |phase| losses.iter().filter(|loss| loss.0 == phase).count();
    assert_eq!((of(Phase::Train), of(Phase::Valid), epochs), (8, 4, 2));
    let mean = losses[6..10].iter().map(|loss| loss.1).sum::<f64>() / 4.0;
    assert!((outcome.summary().metrics["train/loss"] - mean).abs() < 1e-6);
}

#[test]
fn a_closure_can_wrap_an_operation() {
    // Replaces the first optimizer step: the weights stay as they are.
    let weight = |cx: &Cx<OptStep>| cx.vars().get("fc1.weight").unwrap().copy();
    let moved = |replaces: bool| {
        Harness::small()
            .around(|cx: &mut Cx<OptStep>, next| {
                let before = weight(cx);
                let done = if replaces { next.replace(cx, |_| ())? } else { next.run(cx)? };
                Ok((weight(cx) != before, done))
            })
            .unwrap()
    };
    assert!(moved(false) && !moved(true));
    let mut taken = 0;
    let skipping = Harness::small().on::<AfterOptStep>(|_| taken += 1);
    skipping.around(|_: &mut Cx<OptStep>, next| Ok(((), next.skip()))).unwrap(); // skips only the first step
    assert_eq!(taken, 3);
}

#[test]
fn every_entry_point_is_selected_by_the_moment_or_the_phase() {
    assert_eq!(Harness::small().at(|cx: &mut Cx<AfterTest>| Ok(cx.phase())).unwrap(), Phase::Test);
    assert_eq!(Harness::small().at(|cx: &mut Cx<AfterPredictStep>| Ok(cx.phase())).unwrap(), Phase::Predict);
    assert_eq!(Harness::small().at(|cx: &mut Cx<AfterValid>| Ok(cx.counters().epoch)).unwrap(), 0);
    assert_eq!(Harness::small().at(|cx: &mut Cx<AfterSanityCheck>| Ok(cx.phase())).unwrap(), Phase::Sanity);
    for phase in Phase::ALL {
        let seen = Harness::small().phase(phase).at(|cx: &mut Cx<AfterPred>| Ok(cx.phase())).unwrap();
        assert_eq!(seen, phase);
    }
    let error = Harness::small().on::<AfterTest>(|_| ()).on::<AfterFit>(|_| ()).run().unwrap_err();
    let expected = "no entry point reaches all of `after_test`, `after_fit`: test them in separate runs";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_failing_closure_fails_the_run_as_a_hook_does() {
    let outcome = Harness::small()
        .hook(Steps::default())
        .on::<AfterBackward>(|cx| match cx.counters().batch_idx {
            2 => Err(Error::msg("no more")),
            _ => Ok(()),
        })
        .run()
        .unwrap();
    let expected =
        "hook `harness` (tests/it/harness.rs:_) failed at after_backward, epoch 0, batch 2: no more";
    assert_eq!(model::message(outcome.error()), expected);
    let steps = outcome.trainer.hook::<Steps>().unwrap();
    assert_eq!((steps.taken, steps.is_torn_down), (2, true));
    let error = Harness::small().at(|_: &mut Cx<AfterLoss>| Err::<(), _>(Error::msg("refused"))).unwrap_err();
    assert!(error.to_string().ends_with("failed at after_loss, epoch 0, batch 0: refused"), "{error}");
}

#[test]
fn a_harness_resumes_a_run_that_another_one_has_cancelled() {
    let folder = scratch("harness-resume");
    let harness = || {
        let checkpoint = Checkpoint::new(&folder);
        Harness::small().hook(checkpoint).configure(|builder| builder.resume(Resume::Auto))
    };
    assert!(harness().cancel_after(3).run().unwrap().error().is_cancelled());
    let resumed = harness().run().unwrap();
    assert_eq!(resumed.summary().counters.batches_seen, 4);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_requested_failure_or_cancellation_is_not_an_error() {
    let text = Harness::small()
        .fail_at::<AfterPred>("lost")
        .at(|cx: &mut Cx<AfterError>| Ok(cx.error().to_string()))
        .unwrap();
    assert!(text.ends_with("failed at after_pred, epoch 0, batch 0: lost"), "{text}");

    let seen = Harness::small()
        .cancel_after(3)
        .at(|cx: &mut Cx<AfterCancel>| Ok(cx.counters().batches_seen))
        .unwrap();
    assert_eq!(seen, 3);
    for phase in [Phase::Valid, Phase::Test, Phase::Predict] {
        let outcome = Harness::small().phase(phase).cancel_after(1).run().unwrap();
        assert!(outcome.error().is_cancelled(), "{phase}");
    }

    // Other errors are still errors, whether they occur before the requested one or after it.
    let error = Harness::small()
        .fail_at::<AfterFit>("late")
        .configure(|builder| builder.on::<AfterLoss>("early", |_| Err(Error::msg("early"))))
        .at(|_: &mut Cx<AfterError>| Ok(()))
        .unwrap_err();
    assert!(error.to_string().ends_with("batch 0: early"), "{error}");
    let error = Harness::small()
        .fail_at::<AfterPred>("lost")
        .configure(|builder| builder.on::<Teardown>("cleanup", |_| Err(Error::msg("also lost"))))
        .at(|_: &mut Cx<AfterError>| Ok(()))
        .unwrap_err();
    assert!(error.to_string().contains("\n- during cleanup: hook `cleanup`"), "{error}");
}

#[test]
fn a_moment_that_is_not_reached_is_an_error() {
    let not_reached = |result: Result<()>, moment: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(&format!("the run of the harness did not reach `{moment}`: ")), "{error}");
    };
    not_reached(Harness::small().at(|_: &mut Cx<AfterCancel>| Ok(())), "after_cancel");
    not_reached(Harness::small().nth(4).at(|_: &mut Cx<AfterBackward>| Ok(())), "after_backward");
    not_reached(
        Harness::small().fail_at::<BeforeSaveCheckpoint>("x").run().map(drop),
        "before_save_checkpoint",
    );
    let error = Harness::small().cancel_after(5).run().unwrap_err().to_string();
    assert!(error.starts_with("`.cancel_after(5)`: the run of the harness ended before batch 5"), "{error}");
    let error = Harness::small().cancel_after(0).run().unwrap_err().to_string();
    assert!(error.starts_with("`.cancel_after(0)` never cancels"), "{error}");
}

#[test]
fn a_panic_in_a_closure_propagates_to_the_test() {
    let mut is_torn_down = false;
    let run = || {
        Harness::small()
            .hook(Steps::default())
            .on::<Teardown>(|cx| {
                is_torn_down = cx.hook::<Steps>()?.is_torn_down;
                Ok(())
            })
            .at(|cx: &mut Cx<AfterLoss>| -> Result<()> { panic!("at batch {}", cx.counters().batch_idx) })
    };
    let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(payload.downcast_ref::<String>().unwrap(), "at batch 0");
    assert!(is_torn_down);
}

#[test]
fn a_harness_can_run_within_another_and_its_trainer_can_be_used_again() {
    let mut inner_calls = 0;
    let mut outer_calls = 0;
    let mut outcome = Harness::small()
        .on::<AfterEpoch>(|_| {
            outer_calls += 1;
            let inner = Harness::small().on::<AfterStep>(|_| inner_calls += 1).run()?;
            // The closures of a harness end with its run.
            let mut trainer = inner.trainer;
            trainer.test(&mut model::rows(8)).map(drop)
        })
        .run()
        .unwrap();
    outcome.trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!((outer_calls, inner_calls), (1, 6));
}

#[test]
fn a_custom_task_uses_its_own_builder_and_data() {
    let harness = Harness::new(model::builder().accumulate(2), model::rows(16));
    let outcome = harness.hook(Steps::default()).epochs(2).run().unwrap();
    assert_eq!(outcome.summary().counters.optimizer_steps, 4);
    assert_eq!(outcome.trainer.hook::<Steps>().unwrap().taken, 4);
    assert!(outcome.summary().metrics.get("valid/loss").is_none());
    let harness = Harness::new(model::builder().epochs(0), model::rows(4));
    assert!(harness.run().unwrap_err().to_string().contains("`.epochs(0)`"));
}
