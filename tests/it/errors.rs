//! Error messages, and cleanup after errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::prelude::*;

use crate::model::{self, builder};
use crate::support::device;

/// Reads a misspelled gradient in the second epoch.
struct Fails;

#[hook]
impl Fails {
    fn after_backward(&mut self, cx: &mut Cx<AfterBackward>) -> Result<()> {
        if cx.counters().epoch == 1 {
            let _ = cx.grad("fc1.weigth")?;
        }
        Ok(())
    }
}

#[test]
fn a_failing_hook_is_named_with_its_source_location_and_moment() {
    let mut trainer = builder().epochs(2).hook(Fails).build().unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "hook `it::errors::Fails::after_backward` (tests/it/errors.rs:17) failed at after_backward, epoch 1, batch 0: \
         no variable is named `fc1.weigth`; did you mean `fc1.weight`?"
    );
    assert!(matches!(error.downcast_ref(), Some(Error::Usage(_))), "the hook's own error is kept");
}

#[test]
fn the_underlying_error_is_in_the_message_and_not_repeated_by_source() {
    let fails = |_: &mut Cx<AfterStep>| Err::<(), _>(Error::from(std::io::Error::other("disk on fire")));
    let in_hook = builder().on::<AfterStep>("hook", fails).build().unwrap().fit(&mut model::rows(8), None);
    let mut loader = from_fn(|_| [Ok(model_batch()), Err(std::io::Error::other("disk on fire"))]);
    let in_loader = builder().build().unwrap().fit(&mut loader, None);
    for error in [in_hook.unwrap_err(), in_loader.unwrap_err()] {
        assert!(error.to_string().ends_with("disk on fire"), "{error}");
        assert!(std::error::Error::source(&error).is_none());
        assert!(error.downcast_ref::<std::io::Error>().is_some());
        assert!(error.downcast_ref::<std::fmt::Error>().is_none());
    }
}

#[test]
fn after_error_receives_the_error_and_teardown_runs_once() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = |name: &'static str| {
        let seen = Arc::clone(&seen);
        move || seen.lock().unwrap().push(name.to_owned())
    };
    let setup = record("setup");
    let teardown = record("teardown");
    let log = Arc::clone(&seen);
    let mut trainer = builder()
        .on::<Setup>("setup", move |_| setup())
        .on::<AfterError>("after_error", move |cx| log.lock().unwrap().push(cx.error().to_string()))
        .on::<Teardown>("teardown", move |_| teardown())
        .on::<BeforeValid>("fails", |_| Err(Error::msg("out of luck")))
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(4), Some(&mut model::rows(4))).unwrap_err();
    {
        let seen = seen.lock().unwrap();
        assert_eq!([&seen[0], &seen[2]], ["setup", "teardown"]);
        assert!(
            seen[1].ends_with("failed at before_valid (valid), epoch 0, batch 1: out of luck"),
            "{}",
            seen[1]
        );
        assert_eq!(seen.len(), 3);
    }
    // The trainer can be used again.
    trainer.test(&mut model::rows(4)).unwrap();
    assert_eq!(seen.lock().unwrap()[3..], ["setup", "teardown"]);
}

#[test]
fn a_panic_propagates_after_teardown_and_hooks_keep_their_state() {
    struct Panics(u64);
    #[hook]
    impl Panics {
        fn after_pred(&mut self, _: &mut Cx<AfterPred>) {
            self.0 += 1;
            panic!("on purpose");
        }
        fn teardown(&mut self, _: &mut Cx<Teardown>) {
            self.0 += 10;
        }
    }
    let seen = Arc::new(Mutex::new(String::new()));
    let log = Arc::clone(&seen);
    let mut trainer = builder()
        .hook(Panics(0))
        .on::<AfterError>("record", move |cx| *log.lock().unwrap() = cx.error().to_string())
        .build()
        .unwrap();
    let payload = catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut model::rows(4), None))).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(trainer.hook::<Panics>().unwrap().0, 11);
    assert!(seen.lock().unwrap().starts_with("hook `it::errors::"), "{}", seen.lock().unwrap());
    assert!(seen.lock().unwrap().ends_with("failed at after_pred, epoch 0, batch 0: panicked: on purpose"));
    assert!(Tensor::ones([1], (Kind::Float, device())).set_requires_grad(true).square().requires_grad());
}

fn error_of(hook: impl FnMut(&mut Cx<AfterStep>) -> Result<()> + Send + 'static) -> String {
    let mut trainer = builder().on::<AfterStep>("hook", hook).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap_err().to_string()
}

#[test]
fn a_type_mismatch_of_batch_or_prediction_names_both_types() {
    let message = error_of(|cx| cx.batch::<Tensor>().map(|_| ()));
    assert!(
        message.contains(
            "the task's batch is a `(tch::wrappers::tensor::Tensor, tch::wrappers::tensor::Tensor)`, not a"
        ),
        "{message}"
    );
    let message = error_of(|cx| cx.pred::<f64>().map(|_| ()));
    assert!(
        message.contains("the task's prediction is a `tch::wrappers::tensor::Tensor`, not a `f64`"),
        "{message}"
    );
}

#[test]
fn unloggable_metrics_are_reported_by_name() {
    let message = error_of(|cx| {
        cx.log("vector", Tensor::zeros([3], (Kind::Float, device())));
        Ok(())
    });
    assert!(
        message.starts_with("hook `hook` (tests/it/errors.rs:")
            && message.ends_with(
                "failed at after_step, epoch 0, batch 1: \
                 cannot log `vector`: expected a scalar, found a tensor of shape [3]: reduce it, for example with \
                 `.mean(Kind::Float)`"
            ),
        "{message}"
    );
    let message = error_of(|cx| {
        let one = || Tensor::ones([1], (Kind::Float, device()));
        cx.log("phase", Tensor::complex(&one(), &one()));
        Ok(())
    });
    assert!(
        message.contains("cannot log `phase`: cannot read a tensor of dtype ComplexFloat as a number: ")
            && message.contains("cannot be converted to type double")
            && !message.contains('\n'),
        "{message}"
    );
    let message = error_of(|cx| {
        cx.log("loss", 3.0);
        Ok(())
    });
    assert!(message.contains("the trainer logs the loss itself"), "{message}");
}

#[test]
fn an_empty_loader_is_reported_with_likely_causes() {
    let error = builder().build().unwrap().fit(&mut model::rows(3).drop_last(true), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed at train_epoch, epoch 0, batch 0: the loader yielded no batches: \
         check that it has data, and with `drop_last` at least one full batch; a closure passed to `from_fn` must return a new \
         iterator for each epoch"
    );
}

#[test]
fn a_loader_error_ends_the_run() {
    let mut loader = from_fn(|_| [Ok(model_batch()), Err("disk on fire")]);
    let error = builder().build().unwrap().fit(&mut loader, None).unwrap_err();
    assert_eq!(error.to_string(), "failed at train_epoch, epoch 0, batch 1: disk on fire");
}

fn model_batch() -> (Tensor, Tensor) {
    (Tensor::ones([4, 4], (Kind::Float, device())), Tensor::zeros([4], (Kind::Int64, device())))
}

#[test]
fn a_shape_mismatch_is_reported_with_the_batch() {
    // tch panics; the error at `after_error` names the moment and the batch.
    let seen = Arc::new(Mutex::new(String::new()));
    let log = Arc::clone(&seen);
    let mut trainer = builder()
        .on::<AfterError>("record", move |cx| *log.lock().unwrap() = cx.error().to_string())
        .build()
        .unwrap();
    let wide = InMemory::new((
        Tensor::ones([4, 7], (Kind::Float, device())),
        Tensor::zeros([4], (Kind::Int64, device())),
    ));
    let mut wide = wide.unwrap().batch_size(4);
    catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut wide, None))).unwrap_err();
    let message = seen.lock().unwrap().clone();
    assert_eq!(
        message,
        "failed at pred, epoch 0, batch 0 on a batch of (Float [4, 7], Int64 [4]): \
         panicked: mat1 and mat2 shapes cannot be multiplied (4x7 and 4x8)"
    );
}

#[test]
fn unequal_row_counts_and_invalid_optimizer_settings_are_refused() {
    let float = (Kind::Float, device());
    let error = InMemory::new((Tensor::ones([5, 2], float), Tensor::ones([4], float))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tensors of the data have different numbers of rows, 5, 4: expected the same number in all"
    );

    let built = |optimizer| {
        let error = Trainer::builder(model::task()).optimizer(optimizer).discover(Discover::None).build();
        error.unwrap_err().to_string()
    };
    assert!(built(AdamW::new(-1.0)).contains("the optimizer's `lr` is -1: expected at least 0"));
    assert!(built(AdamW::new(f64::NAN)).contains("the optimizer's `lr` is NaN: expected at least 0"));
    assert!(
        built(AdamW::new(1e-3).betas(0.9, 1.0)).contains("`beta2` is 1: expected at least 0 and below 1")
    );
}

#[test]
fn training_without_an_optimizer_is_reported_with_the_fix() {
    let mut trainer = Trainer::builder(model::task()).discover(Discover::None).build().unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert_eq!(error, "training needs an optimizer: add one to the builder, `.optimizer(AdamW::new(1e-3))`");
    assert!(trainer.validate(&mut model::rows(4)).unwrap().metrics.get("valid/loss").is_some());
}

#[test]
fn every_cleanup_hook_runs_even_if_others_fail() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = |name: &'static str| {
        let seen = Arc::clone(&seen);
        move || seen.lock().unwrap().push(name)
    };
    let error = record("after_error");
    let last = record("teardown");
    let mut trainer = builder()
        .on::<AfterError>(HookOptions::named("panics").ord(-1), |_| -> Result<()> {
            panic!("while cleaning up")
        })
        .on::<AfterError>("after_error", move |_| error())
        .on::<Teardown>(HookOptions::named("fails").ord(-1), |_| Err(Error::msg("in teardown")))
        .on::<Teardown>("teardown", move |_| last())
        .on::<BeforeEpoch>("first", |_| Err(Error::msg("the first error")))
        .build()
        .unwrap();
    catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut model::rows(4), None))).unwrap_err();
    assert_eq!(*seen.lock().unwrap(), ["after_error", "teardown"]);
    // If nothing else failed, the error of teardown is returned.
    let error = trainer.test(&mut model::rows(4)).unwrap_err().to_string();
    assert!(error.ends_with("in teardown"), "{error}");
    assert_eq!(seen.lock().unwrap()[2..], ["teardown"]);
}

#[test]
fn an_error_leaves_no_gradients_for_the_next_run() {
    let norms = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&norms);
    let mut fail = true;
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.0))
        .discover(Discover::None)
        .on::<AfterBackward>("norm", move |cx| {
            log.lock().unwrap().push(cx.grad("fc1.weight")?.norm().double_value(&[]));
            if std::mem::take(&mut fail) { Err(Error::msg("once")) } else { Ok(()) }
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(4), None).unwrap_err();
    trainer.fit(&mut model::rows(4), None).unwrap();
    let norms = norms.lock().unwrap();
    assert_eq!(norms[0], norms[1], "gradients of the failed step do not count in the next");
}

#[test]
fn a_parameter_resized_after_build_is_reported_before_the_kernel_runs() {
    let mut trainer = trainer_with(AdamW::new(1e-3));
    let mut weight = trainer.vars().get("fc1.weight").unwrap().shallow_clone();
    weight.set_data(&Tensor::zeros([8, 400], (Kind::Float, device())));
    let wide = (Tensor::ones([4, 400], (Kind::Float, device())), Tensor::zeros([4], (Kind::Int64, device())));
    let error = trainer.fit(&mut InMemory::new(wide).unwrap().batch_size(4), None).unwrap_err().to_string();
    assert!(error.starts_with("failed at opt_step, epoch 0, batch 0"), "{error}");
    assert!(error.contains("`fc1.weight`"), "{error}");
    assert!(error.contains("was changed after the trainer was built"), "{error}");
}

fn trainer_with(optimizer: impl Optimizer + 'static) -> Trainer<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task()).optimizer(optimizer).discover(Discover::None).build().unwrap()
}

#[test]
fn a_fully_frozen_network_is_reported() {
    let task = model::task();
    task.vars().variables_.lock().unwrap().trainable_variables.iter_mut().for_each(|var| {
        let _ = var.tensor.set_requires_grad(false);
    });
    let mut trainer =
        Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).build().unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(
        error.contains("the loss does not require gradients: check that some parameters are trained"),
        "{error}"
    );
}

#[test]
fn a_result_fits_in_two_registers() {
    assert_eq!(size_of::<Result<()>>(), 2 * size_of::<usize>());
}

#[test]
fn a_hook_that_fails_twice_is_the_only_one_named() {
    let mut trainer = builder()
        .on::<AfterStep>("both", |cx| {
            cx.log("vector", Tensor::zeros([3], (Kind::Float, device())));
            Err(Error::msg("its own error"))
        })
        .on::<Teardown>("innocent", |_| {})
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(error.starts_with("hook `both`") && error.ends_with("its own error"), "{error}");
    trainer.validate(&mut model::rows(4)).unwrap_err();
}

#[test]
fn a_network_built_on_another_var_store_is_reported() {
    let vs = nn::VarStore::new(device());
    let other = nn::VarStore::new(device());
    nn::linear(vs.root() / "unused", 4, 3, Default::default());
    let net = nn::linear(other.root() / "fc", 4, 3, Default::default());
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let mut trainer =
        Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).build().unwrap();
    let error = trainer.fit(&mut model::rows(4), None).unwrap_err().to_string();
    assert!(error.contains("check that the network was built on this `VarStore`"), "{error}");
}

/// Reads values of other types than the task's, some of them in every call.
struct Reads;

#[hook]
impl Reads {
    fn batch(&mut self, cx: &Cx<BeforeStep>) -> Result<()> {
        let _ = cx.batch::<Vec<Tensor>>()?;
        Ok(())
    }
    #[hook(only = valid)]
    fn pred(&mut self, cx: &Cx<AfterPred>) -> Result<()> {
        let _ = (cx.batch::<(Tensor, Tensor)>()?, cx.pred::<f64>()?);
        Ok(())
    }
    fn task(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        if cx.counters().epoch == 7 {
            let _ = cx.task::<u16>()?;
        }
        let _ = cx.task_mut::<u8>()?; // after a branch
        Ok(())
    }
}

#[hook]
impl<T: Send + 'static> Generic<T> {
    fn around(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        self.0 += cx.batch::<(Tensor, T)>()?.0.size()[0];
        next.run(cx)
    }
}

struct Generic<T>(i64, std::marker::PhantomData<T>);

fn is_never<P>(_: &Cx<P>) -> bool {
    false
}

/// A hook for some tasks only, as its condition says.
struct Conditional;

#[hook]
impl Conditional {
    #[hook(when = is_never)]
    fn batch(&mut self, cx: &Cx<BeforeStep>) -> Result<()> {
        let _ = cx.batch::<Vec<Tensor>>()?;
        Ok(())
    }
}

#[test]
fn types_that_a_hook_reads_in_every_call_are_checked_when_the_trainer_is_built() {
    let generic = Generic::<u8>(0, std::marker::PhantomData);
    let error = model::builder().hook(Reads).hook(generic).build().unwrap_err();
    insta::assert_snapshot!(model::message(&error), @"
    the trainer cannot be built, for 3 reasons:
    - `it::errors::Reads::batch` (tests/it/errors.rs:_) calls `cx.batch::<alloc::vec::Vec<tch::wrappers::tensor::Tensor>>()`, but the task's batch is a `(tch::wrappers::tensor::Tensor, tch::wrappers::tensor::Tensor)`: use that type, or exclude the hook with `.without(…)`
    - `it::errors::Reads::pred` (tests/it/errors.rs:_) calls `cx.pred::<f64>()`, but the task's prediction is a `tch::wrappers::tensor::Tensor`: use that type, or exclude the hook with `.without(…)`
    - `it::errors::Generic<u8>::around` (tests/it/errors.rs:_) calls `cx.batch::<(tch::wrappers::tensor::Tensor, u8)>()`, but the task's batch is a `(tch::wrappers::tensor::Tensor, tch::wrappers::tensor::Tensor)`: use that type, or exclude the hook with `.without(…)`
    ");
    let generic = Generic::<Tensor>(0, std::marker::PhantomData);
    let mut trainer = model::builder().hook(generic).hook(Conditional).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_eq!(trainer.hook::<Generic<Tensor>>().unwrap().0, 8);
}
