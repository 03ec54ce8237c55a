//! `Amp`: autocast, and the gradient scaler of fp16.

use trainer::hooks::{Amp, Checkpoint, HyperparameterSchedule};
use trainer::prelude::*;
use trainer::schedule::Linear;
use trainer::{CancelToken, TrainerBuilder};

use crate::model::{self, message, rows};
use crate::support::{device, exact_state, parameters, scratch};

/// Returns whether this thread computes matrix products in a lower precision.
fn is_autocast() -> bool {
    let ones = Tensor::ones([2, 2], (Kind::Float, device()));
    ones.matmul(&ones).kind() != Kind::Float
}

/// Adds a hook that fills the gradients with infinity in these batches, before every hook around
/// `opt_step`.
fn overflow_in<T: Task>(builder: TrainerBuilder<T>, batches: &'static [u64]) -> TrainerBuilder<T> {
    builder.on::<BeforeOptStep>("overflow", move |cx| {
        if batches.contains(&cx.counters().batches_seen) {
            cx.grads().for_each(|(_, mut grad)| drop(grad.fill_(f64::INFINITY)));
        }
    })
}

fn scale<T: Task>(trainer: &Trainer<T>) -> f64 {
    trainer.hook::<Amp>().unwrap().scale()
}

#[test]
fn predictions_are_in_low_precision_and_gradients_are_not() {
    for (amp, kind) in [(Amp::bf16(), Kind::BFloat16), (Amp::fp16(), Kind::Half)] {
        let mut trainer = model::builder()
            .hook(amp)
            .on::<AfterPred>("kind", move |cx| assert_eq!(cx.pred::<Tensor>().unwrap().kind(), kind))
            .on::<AfterLoss>("loss", |cx| {
                assert!(!is_autocast());
                assert_eq!(cx.loss().kind(), Kind::Float);
            })
            .on::<AfterBackward>("grads", |cx| {
                cx.grads().for_each(|(_, grad)| assert_eq!(grad.kind(), Kind::Float));
            })
            .build()
            .unwrap();
        trainer.fit(&mut rows(16), Some(&mut rows(8))).unwrap();
        trainer.test(&mut rows(8)).unwrap();
        assert_eq!(trainer.predict(&mut rows(8)).unwrap()[0].kind(), kind);
        assert!(!is_autocast());
    }
}

/// Returns a builder for a model without operations that autocast changes, so that scaling by
/// powers of two is exact.
pub(crate) fn elementwise() -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    let vs = nn::VarStore::new(device());
    let weight = vs.root().var("weight", &[4], nn::Init::Const(0.5));
    let net = nn::func(move |inputs| inputs * &weight);
    let loss =
        |pred: &Tensor, labels: &Tensor| (pred.sum_dim_intlist(1, false, None) - labels).square().mean(None);
    Trainer::builder(Supervised::new(vs, net, loss)).optimizer(AdamW::new(0.1)).discover(Discover::None)
}

#[test]
fn a_part_of_the_model_can_opt_out_of_autocast() {
    let vs = nn::VarStore::new(device());
    let first = nn::linear(vs.root() / "first", 4, 8, Default::default());
    let second = nn::linear(vs.root() / "second", 8, 3, Default::default());
    let net = nn::func(move |inputs| {
        let hidden = inputs.apply(&first);
        assert_eq!(hidden.kind(), Kind::BFloat16);
        let f32 = trainer::Autocast::disable();
        let pred = hidden.to_kind(Kind::Float).apply(&second);
        drop(f32);
        assert_eq!(pred.kind(), Kind::Float);
        assert!(is_autocast());
        pred
    });
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Amp::bf16())
        .build()
        .unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
}

#[test]
fn errors_and_panics_restore_the_autocast_mode() {
    for panics in [false, true] {
        let vs = nn::VarStore::new(device());
        let weight = vs.root().zeros("weight", &[4, 3]);
        let net = nn::func(move |inputs| {
            assert!(!panics, "the model panics");
            inputs.matmul(&weight)
        });
        let task =
            Supervised::new(vs, net, |_: &Tensor, _: &Tensor| Tensor::zeros([2], (Kind::Float, device())));
        let mut trainer = Trainer::builder(task)
            .optimizer(Sgd::new(0.1))
            .discover(Discover::None)
            .hook(Amp::bf16())
            .build()
            .unwrap();
        let run = std::panic::AssertUnwindSafe(|| trainer.fit(&mut rows(8), None).is_err());
        assert_eq!(std::panic::catch_unwind(run).ok(), (!panics).then_some(true));
        assert!(!is_autocast());
    }
}

#[test]
fn the_loss_scale_backs_off_and_grows_as_in_pytorch() {
    // The scale after each batch, with overflows in batches 1, 2 and 7, and a growth interval of 3.
    let expected = [1024., 512., 256., 256., 256., 512., 512., 256., 256., 256., 512., 512.];
    let scales = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = scales.clone();
    let amp = Amp::fp16().init_scale(1024.0).growth_interval(3);
    let mut trainer = overflow_in(elementwise(), &[1, 2, 7])
        .hook(amp)
        .on::<AfterStep>("scale", move |cx| note.lock().unwrap().push(cx.hook::<Amp>().unwrap().scale()))
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows(48), None).unwrap();
    assert_eq!(*scales.lock().unwrap(), expected);
    assert_eq!((summary.counters.batches_seen, summary.counters.optimizer_steps), (12, 9));
}

#[test]
fn a_skipped_step_does_not_advance_the_schedule() {
    let lrs = |amp: bool| {
        let mut lrs = Vec::new();
        let (send, receive) = std::sync::mpsc::channel();
        let builder = overflow_in(elementwise(), if amp { &[1] } else { &[] })
            .hook(HyperparameterSchedule::lr(Linear::to(0.0).over(8)))
            .on::<AfterOptStep>("lrs", move |cx| send.send(cx.lrs()[0]).unwrap());
        let builder = if amp { builder.hook(Amp::fp16()) } else { builder };
        builder.build().unwrap().fit(&mut rows(20), None).unwrap();
        lrs.extend(receive.iter());
        lrs
    };
    let with = lrs(true);
    let without = lrs(false);
    assert_eq!((with.len(), without.len()), (4, 5));
    assert_eq!(with, without[..4]);
}

#[test]
fn loss_scaling_leaves_the_weights_bit_identical() {
    // Clipping, accumulation, and a hook that keeps the gradients of every second window.
    let train = |amp: bool| {
        let builder = elementwise().accumulate(2).clip_grad_norm(0.05).epochs(3).hook(EachSecond);
        let builder = if amp { builder.hook(Amp::fp16().growth_interval(2)) } else { builder };
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut rows(24), None).unwrap();
        parameters(&trainer)
    };
    assert_eq!(train(true), train(false));
}

/// Takes an optimizer step in every second window, with the gradients of both windows.
struct EachSecond;

#[hook]
impl EachSecond {
    fn step(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if cx.counters().batch_idx % 4 == 3 { next.run(cx) } else { Ok(next.skip()) }
    }
}

#[test]
fn the_loss_scale_is_restored_exactly() {
    let folder = scratch("amp");
    let run = |cancel_in: Option<u64>| {
        let token = CancelToken::new();
        let mut trainer = overflow_in(model::builder(), &[1, 6])
            .epochs(3)
            .hook(Amp::fp16().growth_interval(2))
            .hook(Checkpoint::new(&folder).every(Every::Steps(1)))
            .resume(Resume::Auto)
            .cancel_token(token.clone())
            .on::<AfterStep>("cancel", move |cx| {
                if Some(cx.counters().batches_seen) == cancel_in {
                    token.cancel();
                }
            })
            .build()
            .unwrap();
        let is_cancelled = trainer.fit(&mut rows(16), None).is_err();
        assert_eq!(is_cancelled, cancel_in.is_some());
        (scale(&trainer), exact_state(&trainer))
    };
    let whole = run(None);
    for batch in 1..12 {
        std::fs::remove_dir_all(&folder).unwrap();
        run(Some(batch));
        assert_eq!(run(None), whole, "cancelled in batch {batch}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn gradients_that_are_never_finite_end_the_run() {
    let all: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7];
    let mut trainer = overflow_in(elementwise(), all).hook(Amp::fp16().init_scale(1e-4)).build().unwrap();
    let error = trainer.fit(&mut rows(32), None).unwrap_err();
    assert_eq!(
        message(&error),
        "`Amp` failed at after_step, epoch 0, batch 3: the gradients of batch 3 are not finite even with a loss scale of 2.5e-5: \
         the loss or the model produces NaN or infinite values; `detect_anomaly(true)` finds the operation"
    );
}

#[test]
fn low_precision_parameters_are_refused_at_setup() {
    let mut vs = nn::VarStore::new(device());
    let net = nn::linear(vs.root() / "fc", 4, 3, Default::default());
    vs.bfloat16();
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).hook(Amp::bf16()).build().unwrap();
    let error = message(&trainer.fit(&mut rows(8), None).unwrap_err());
    assert!(error.contains("has dtype BFloat16: keep parameters in `Kind::Float`"), "{error}");
}
