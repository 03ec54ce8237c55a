//! Batches with a weight of 0.

use super::*;

/// Returns the 101 rows in batches of this size, with 32 rows of padding from each of `rows` on.
fn padded(size: usize, rows: &[i64]) -> InMemory<Tokens> {
    let (inputs, targets, mask) = tokens(101);
    for first in rows {
        let _ = mask.narrow(0, *first, 32).fill_(0.0);
    }
    loader((inputs, targets, mask), size)
}

#[test]
fn a_batch_of_weight_0_contributes_nothing() {
    for by in BOTH {
        for in_turn in [false, true] {
            let builder = || builder(halves(true, in_turn), by);
            for padding in [vec![32], vec![0], vec![0, 32], vec![64]] {
                let one = trained(builder(), padded(101, &padding));
                let four = trained(builder().accumulate(4), padded(32, &padding));
                assert_equal(&format!("padding at {padding:?}"), by, &one, &four);
            }
        }
    }
}

#[test]
fn a_batch_of_weight_0_fires_neither_loss_nor_backward_and_logs_no_metric() {
    let fired: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |name: &'static str| {
        let fired = Arc::clone(&fired);
        move |batch: u64| fired.lock().unwrap().push(format!("{name} {batch}"))
    };
    let (loss, backward, step, zero) =
        (note("after_loss"), note("after_backward"), note("opt_step"), note("zero_grad"));
    // Batches of 32, 32, 32 and 5 rows in windows of two: each window begins with a batch of
    // padding only.
    let builder = builder(halves(true, false), By::Sgd).epochs(1).accumulate(2);
    let mut trainer = builder
        .on::<AfterLoss>("loss", move |cx| loss(cx.counters().batch_idx))
        .on::<AfterBackward>("backward", move |cx| backward(cx.counters().batch_idx))
        .on::<BeforeOptStep>("step", move |cx| {
            assert_eq!(
                (cx.weight(), cx.loss().double_value(&[])),
                (0.0, 0.0),
                "the last batch of its window"
            );
            step(cx.counters().batch_idx);
        })
        .on::<AfterZeroGrad>("zero", move |cx| zero(cx.counters().batch_idx))
        .on::<AfterStep>("metric", |cx| {
            assert_eq!(cx.step_loss().is_some(), cx.weight() > 0.0);
            cx.log("nan", if cx.weight() > 0.0 { 1.0 } else { f64::NAN });
        })
        .build()
        .unwrap();
    let summary = trainer.fit(&mut padded(32, &[32]).limited(), None).unwrap();
    assert_eq!(
        *fired.lock().unwrap(),
        ["after_loss 0", "after_backward 0", "opt_step 1", "zero_grad 1"],
        "and nothing for the batch of padding"
    );
    let Counters { batches_seen, optimizer_steps, samples_seen, .. } = summary.counters;
    assert_eq!((batches_seen, optimizer_steps, samples_seen), (2, 1, 64));
    assert!(summary.metrics["train/loss"].is_finite());
    assert_eq!(summary.metrics["train/nan"], 1.0);
}

#[test]
fn a_window_of_batches_of_weight_0_takes_no_optimizer_step() {
    for in_turn in [false, true] {
        let mut trainer = builder(halves(true, in_turn), By::AdamW)
            .epochs(1)
            .accumulate(2)
            .on::<BeforeOptStep>("never", |_| panic!("there is no gradient"))
            .build()
            .unwrap();
        let before = flat_parameters(&trainer);
        let error = trainer.fit(&mut padded(32, &[0, 32]).limited(), None).unwrap_err().to_string();
        assert!(error.contains("every training batch of epoch 0 had weight 0"), "{error}");
        let counters = trainer.counters();
        assert_eq!((counters.batches_seen, counters.optimizer_steps), (2, 0));
        assert_eq!(distance(&before, &flat_parameters(&trainer)), 0.0);
        // The same applies to evaluation.
        let summary = trainer.test(&mut padded(32, &[0, 32]).limited()).unwrap();
        assert_eq!(summary.metrics.get("test/loss"), None);
    }
}
