//! Counters, gradient accumulation, clipping, and logged metrics.

use std::sync::{Arc, Mutex};

use trainer::__private::{leave_unread, reads};
use trainer::TrainerBuilder;
use trainer::prelude::*;
use trainer::testing::Harness;

use crate::model::{self, builder, message};
use crate::support::{distance, flat_parameters, gradient_norm};

/// Returns the parameters after a fit over `rows` rows.
fn trained(
    builder: TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>>,
    rows: i64,
    batch_size: usize,
) -> Tensor {
    let mut trainer = builder.build().unwrap();
    trainer.fit(&mut model::rows(rows).batch_size(batch_size), None).unwrap();
    flat_parameters(&trainer)
}

#[test]
fn accumulated_batches_match_one_large_batch() {
    let one = trained(builder().accumulate(3), 24, 4);
    let other = trained(builder(), 24, 12);
    assert!(distance(&one, &other) < 1e-6);
    assert!(distance(&one, &trained(builder(), 24, 4)) > 1e-3);
}

#[test]
fn a_short_last_window_is_divided_by_its_own_size() {
    // Five batches of four: a window of three, and one of two.
    let mut by_hand = builder().build().unwrap();
    for (from, to) in [(0, 12), (12, 20)] {
        by_hand.fit(&mut as_one_batch(from, to), None).unwrap();
    }
    let short = trained(builder().accumulate(3), 20, 4);
    assert!(distance(&short, &flat_parameters(&by_hand)) < 1e-6);
    // A loader that does not know its length makes no difference.
    let mut stream = trainer::data::from_fn(|_| {
        let mut rows = model::rows(20);
        let batches: Vec<_> = rows.batches(0, 0).unwrap().collect();
        batches
    });
    let mut trainer = builder().accumulate(3).build().unwrap();
    trainer.fit(&mut stream, None).unwrap();
    assert_eq!(short, flat_parameters(&trainer));
}

/// Returns these rows of the model's data as one batch.
fn as_one_batch(from: i64, to: i64) -> InMemory<(Tensor, Tensor)> {
    let mut all = model::rows(to).batch_size(usize::try_from(to).unwrap());
    let (inputs, labels) = all.batches(0, 0).unwrap().next().unwrap().unwrap();
    let rows = (inputs.narrow(0, from, to - from), labels.narrow(0, from, to - from));
    InMemory::new(rows).unwrap().batch_size(usize::try_from(to - from).unwrap())
}

#[test]
fn an_accumulation_window_closes_at_the_end_of_the_pass() {
    let boundaries = |builder: TrainerBuilder<_>| {
        let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
        let steps = Arc::clone(&seen);
        let mut trainer = builder
            .epochs(2)
            .accumulate(3)
            .on::<AfterOptStep>("boundary", move |cx| steps.lock().unwrap().push(cx.counters().batch_idx))
            .on::<AfterStep>("is_boundary", |cx| {
                let boundary = cx.is_boundary();
                cx.log_as("boundaries", u8::from(boundary), Reduce::Sum);
            })
            .build()
            .unwrap();
        let summary = trainer.fit(&mut model::rows(20), None).unwrap();
        let boundaries = summary.history["train/boundaries"].iter().sum::<f64>();
        assert_eq!(boundaries, summary.counters.optimizer_steps as f64);
        seen.lock().unwrap().clone()
    };
    assert_eq!(boundaries(model::builder()), [2, 4, 2, 4]);
    // `end_epoch` after the first batch: one more batch closes the open window.
    let end = |cx: &mut Cx<AfterStep>| {
        if cx.counters().batch_idx == 1 {
            cx.end_epoch();
        }
    };
    assert_eq!(boundaries(model::builder().on::<AfterStep>("end", end)), [1, 1]);
    // If `end_epoch` is called before a batch begins, that batch is the last.
    let at_once = |cx: &mut Cx<BeforeStep>| cx.end_epoch();
    assert_eq!(boundaries(model::builder().on::<BeforeStep>("end", at_once)), [0, 0]);
    // A skipped batch does not count: its window continues in the next epoch.
    let skip = |cx: &mut Cx<BeforeStep>| {
        if cx.counters().batch_idx == 4 {
            cx.skip_batch();
        }
    };
    assert_eq!(boundaries(model::builder().on::<BeforeStep>("skip", skip)), [2, 1]);
    assert_eq!(boundaries(model::builder().accumulate_from(1, 2)), [2, 4, 1, 3, 4]);
}

#[test]
fn counters_do_not_depend_on_accumulation() {
    let after = |accumulate: u64| {
        let mut trainer = builder().epochs(2).accumulate(accumulate).build().unwrap();
        trainer.fit(&mut model::rows(22), Some(&mut model::rows(8))).unwrap().counters
    };
    let one = after(1);
    let four = after(4);
    assert_eq!((one.optimizer_steps, four.optimizer_steps), (12, 4));
    assert_eq!(Counters { optimizer_steps: 0, ..one }, Counters { optimizer_steps: 0, ..four });
    assert_eq!((one.samples_seen, one.batches_seen, one.batch_idx), (44, 12, 6));
}

#[test]
fn gradients_are_clipped_once_for_each_optimizer_step() {
    let mut before = Vec::new();
    let mut after = Vec::new();
    let mut largest = 0.0_f64;
    let small = || Harness::small().epochs(2);
    let clipped = small().configure(|builder| builder.accumulate(2).clip_grad_norm(0.05));
    let clipped = clipped.on::<BeforeOptStep>(|cx| before.push(gradient_norm(cx)));
    let outcome = clipped.on::<AfterOptStep>(|cx| after.push(gradient_norm(cx))).run().unwrap();
    let table = outcome.trainer.describe_hooks();
    assert!(table.at("opt_step").contains(&"trainer::hooks::ClipGradNorm::clip"));
    assert_eq!((before.len(), after.len()), (4, 4));
    assert!(before.iter().all(|norm| *norm > 0.06), "{before:?}");
    assert!(after.iter().all(|norm| (norm - 0.05).abs() < 1e-5), "{after:?}");

    // Gradients below the limit are unchanged, bit for bit.
    assert_eq!(trained(builder().clip_grad_norm(1e3), 20, 4), trained(builder(), 20, 4));
    let by_value = small().configure(|builder| builder.clip_grad_value(1e-3));
    let by_value = by_value.on::<AfterOptStep>(|cx| {
        let of_step = cx.grads().map(|(_, grad)| grad.abs().max().double_value(&[])).fold(0.0, f64::max);
        largest = largest.max(of_step);
    });
    by_value.run().unwrap();
    assert!((largest - 1e-3).abs() < 1e-9, "{largest}");
}

#[test]
fn gradients_within_a_window_are_running_sums_over_its_batches() {
    let name = |cx: &Cx<AfterBackward>| cx.vars().parameters().next().unwrap().name.clone();
    let own: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let note = Arc::clone(&own);
    let mut sums = Vec::new();
    let mut means = Vec::new();
    let harness = Harness::small().configure(|builder| builder.accumulate(3).epochs(1));
    let harness = harness.on::<BeforeFit>(move |cx| {
        let note = Arc::clone(&note);
        let first = cx.vars().parameters().next().unwrap().tensor.shallow_clone();
        first.on_grad(move |grad| note.lock().unwrap().push(grad.copy())).map(drop)
    });
    let harness = harness.on::<AfterBackward>(|cx| sums.push(cx.grad(&name(cx)).unwrap().copy()));
    harness
        .on::<BeforeOptStep>(|cx| {
            let first = cx.vars().parameters().next().unwrap().name.clone();
            means.push(cx.grad(&first).unwrap().copy());
        })
        .run()
        .unwrap();
    let own = own.lock().unwrap();
    assert!(sums.len() >= 3 && own.len() == sums.len());
    let is_close = |one: &Tensor, other: &Tensor| (one - other).abs().max().double_value(&[]) < 1e-6;
    assert!(is_close(&sums[0], &own[0]));
    assert!(is_close(&sums[1], &(&own[0] + &own[1])));
    assert!(is_close(&sums[2], &(&own[0] + &own[1] + &own[2])));
    assert!(is_close(&means[0], &(&sums[2] / 3.0)) && !is_close(&own[0], &own[1]));
}

#[test]
fn gradients_are_clipped_by_value_before_they_are_clipped_by_norm() {
    const MAX_VALUE: f64 = 0.02;
    const MAX_NORM: f64 = 0.03;
    let flat = |grads: trainer::Grads| {
        let grads: Vec<_> = grads.map(|(_, grad)| grad.copy().view([-1])).collect();
        Tensor::cat(&grads, 0).to_kind(Kind::Double)
    };
    let mut before = Vec::new();
    let mut after = Vec::new();
    // The order of the two calls makes no difference.
    let both =
        Harness::small().configure(|builder| builder.clip_grad_norm(MAX_NORM).clip_grad_value(MAX_VALUE));
    let both = both.on::<BeforeOptStep>(|cx| before.push(flat(cx.grads())));
    let outcome = both.on::<AfterOptStep>(|cx| after.push(flat(cx.grads()))).run().unwrap();
    let order: Vec<_> =
        outcome.trainer.describe_hooks().at("opt_step").into_iter().map(str::to_owned).collect();
    let hooks = ["ClipGradValue::clip", "ClipGradNorm::clip"].map(|hook| format!("trainer::hooks::{hook}"));
    assert_eq!(order, hooks);
    let mut other_order = false;
    for (before, after) in before.iter().zip(&after) {
        let by_value = before.clamp(-MAX_VALUE, MAX_VALUE);
        let norm = by_value.norm().double_value(&[]);
        let expected = &by_value * (MAX_NORM / (norm + 1e-6)).min(1.0);
        assert!((after - expected).abs().max().double_value(&[]) < 1e-8);
        let by_norm = before * (MAX_NORM / (before.norm().double_value(&[]) + 1e-6)).min(1.0);
        other_order |= (after - by_norm.clamp(-MAX_VALUE, MAX_VALUE)).abs().max().double_value(&[]) > 1e-4;
    }
    assert!(!after.is_empty() && other_order, "the data must tell the two orders apart");
}

#[test]
fn lrs_returns_the_rate_that_the_step_used() {
    // A schedule that sets the rate of the next step before the rate of this step is logged.
    let schedule = |cx: &mut Cx<AfterOptStep>| {
        for group in cx.optimizer_mut().unwrap().groups_mut() {
            group.lr *= 0.5;
        }
    };
    let mut trainer = builder()
        .on::<AfterOptStep>("schedule", schedule)
        .on::<AfterStep>("log", |cx| {
            let lr = cx.lrs()[0];
            cx.log_as("lr", lr, Reduce::Last);
        })
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(12), None).unwrap();
    assert_eq!(summary.metrics["train/lr"], 0.1 * 0.5 * 0.5);
    assert_eq!(trainer.optimizer().unwrap().groups()[0].lr, 0.1 * 0.5 * 0.5 * 0.5);
}

/// Returns a hook that logs the size of the batch with every reduction, as a number or as a tensor.
fn sizes(as_tensor: bool) -> impl FnMut(&mut Cx<AfterStep>) + Send {
    move |cx| {
        let size = cx.batch::<(Tensor, Tensor)>().unwrap().0.size()[0] as f64;
        let mut changed = Vec::new();
        for reduce in [Reduce::Mean, Reduce::Last, Reduce::Sum, Reduce::Min, Reduce::Max] {
            let name = reduce.to_string();
            let value: trainer::Value = if as_tensor { Tensor::from(size).into() } else { size.into() };
            cx.log_as(&name, value_of(value, &mut changed), reduce);
        }
        // A logged tensor may be changed afterwards.
        for tensor in &mut changed {
            let _ = tensor.fill_(-1.0);
        }
    }
}

/// Returns the value, and adds its tensor to `changed`.
fn value_of(value: trainer::Value, changed: &mut Vec<Tensor>) -> trainer::Value {
    match value {
        trainer::Value::Tensor(tensor) => {
            changed.push(tensor.shallow_clone());
            tensor.into()
        }
        number => number,
    }
}

#[test]
fn logged_values_are_reduced_as_requested() {
    for (as_tensor, unread) in [(false, false), (true, false), (true, true)] {
        let mut trainer = builder().on::<AfterStep>("sizes", sizes(as_tensor)).build().unwrap();
        if unread {
            leave_unread(&mut trainer);
        }
        // Batches of 4, 4 and 2 rows.
        let metrics = trainer.fit(&mut model::rows(10), Some(&mut model::rows(6))).unwrap().metrics;
        let of = |phase: &str| {
            ["mean", "last", "sum", "min", "max"].map(|name| metrics[&*format!("{phase}/{name}")])
        };
        assert_eq!(of("train"), [3.6, 2.0, 10.0, 2.0, 4.0]);
        assert_eq!(of("valid"), [20.0 / 6.0, 2.0, 6.0, 2.0, 4.0]);
    }
}

#[test]
fn one_nan_makes_the_reduced_value_nan() {
    let mut trainer = builder()
        .on::<AfterStep>("nan", |cx| {
            let value = if cx.counters().batch_idx == 2 { f64::NAN } else { 1.0 };
            cx.log_as("min", value, Reduce::Min);
            cx.log_as("max", value, Reduce::Max);
            cx.log("mean", value);
        })
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(12), None).unwrap();
    for name in ["train/min", "train/max", "train/mean"] {
        assert!(summary.metrics[name].is_nan());
        // The NaN counts as a measured value, unlike a row without a value.
        assert_eq!(summary.history.points(name).count(), 1);
    }
}

#[test]
fn a_metric_logged_with_two_reductions_is_an_error() {
    let mut trainer = builder()
        .on::<AfterStep>("one", |cx| cx.log("x", 1))
        .on::<AfterStep>("other", |cx| cx.log_as("x", 1, Reduce::Max))
        .build()
        .unwrap();
    let error = message(&trainer.fit(&mut model::rows(8), None).unwrap_err());
    assert!(
        error.contains("hook `other`")
            && error.contains(
                "cannot log `x`: it was already logged with the reduction mean, and is now logged with max"
            ),
        "{error}"
    );
}

#[test]
fn logged_tensors_are_read_once_per_pass_or_when_a_hook_reads_them() {
    let mut trainer = builder()
        .epochs(2)
        .clip_grad_norm(0.1)
        .accumulate(2)
        .on::<AfterStep>("log", |cx| {
            let loss = cx.step_loss().unwrap().shallow_clone();
            cx.log("again", &loss);
            cx.log_as("highest", &loss, Reduce::Max);
        })
        .build()
        .unwrap();
    leave_unread(&mut trainer);
    trainer.fit(&mut model::rows(400), Some(&mut model::rows(400))).unwrap();
    // 200 batches each of training and validation, three tensors each: read once for each pass and
    // name.
    assert_eq!(reads(&trainer), 4 * 3);

    // A hook that calls `logged` gets the values of its step, which are read at that time.
    let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
    let values = Arc::clone(&seen);
    let mut trainer = builder()
        .on::<AfterStep>(HookOptions::named("ask").ord(10), move |cx| {
            let loss = cx.step_loss().unwrap().double_value(&[]);
            let logged = cx.logged()?["train/loss"];
            assert_eq!(loss, logged);
            values.lock().unwrap().push(logged);
            Ok(())
        })
        .build()
        .unwrap();
    leave_unread(&mut trainer);
    let summary = trainer.fit(&mut model::rows(12), None).unwrap();
    assert_eq!(reads(&trainer), 3 + 1);
    let seen = seen.lock().unwrap();
    assert!((summary.metrics["train/loss"] - seen.iter().sum::<f64>() / 3.0).abs() < 1e-12);
}

#[test]
fn values_logged_outside_of_a_pass_are_in_summary_and_history() {
    let mut trainer = builder()
        .epochs(2)
        .on::<AfterTrainEpoch>("epoch", |cx| {
            let epoch = cx.counters().epoch;
            cx.log("number", epoch);
        })
        .on::<AfterFit>("fit", |cx| cx.log("final", 7))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(&summary.history["train/number"], &[0.0, 1.0]);
    assert_eq!(
        summary.history.points("train/final").map(|(step, _)| step.samples_seen).collect::<Vec<_>>(),
        [16]
    );
    assert_eq!(summary.history.len(), 2);
    assert_eq!(summary.metrics["train/final"], 7.0);
    assert_eq!(summary.history.steps()[0].samples_seen, 8);
    let names: Vec<_> = summary.history.columns().map(|(name, _)| name).collect();
    assert_eq!(names, ["train/loss", "train/number", "train/final"]);
}

#[test]
#[should_panic(expected = "the history has no column `train/los`; did you mean `train/loss`?")]
fn an_unknown_history_column_panics_with_a_suggestion() {
    let summary = builder().build().unwrap().fit(&mut model::rows(8), None).unwrap();
    let _ = &summary.history["train/los"];
}
