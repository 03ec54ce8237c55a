//! Hooks at named modules that are misused, fail or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use trainer::modules::{Name, Named, Patterns};
use trainer::prelude::*;

use crate::model::{message, rows};
use crate::modules::{Seen, Watch, builder, take};
use crate::support::device;

/// The behavior of a hook around `enc`.
#[derive(Clone, Copy)]
enum Does {
    Skips,
    SkipsAndSets,
    ReplacesWithoutOutput,
    Replaces,
    ReplacesAfter,
}

struct AroundEnc(Does);

#[hook]
impl AroundEnc {
    #[hook(of = "enc")]
    fn around(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
        let ones = Tensor::ones([cx.input().size()[0], 8], (Kind::Float, device()));
        match self.0 {
            Does::Skips => Ok(next.skip()),
            Does::SkipsAndSets => cx.set_output(ones).map(|()| next.skip()),
            Does::ReplacesWithoutOutput => next.replace(cx, |_| {}),
            Does::Replaces => next.replace(cx, |cx| cx.set_output(ones)),
            Does::ReplacesAfter => {
                let done = next.run(cx)?;
                cx.set_output(ones)?;
                Ok(done)
            }
        }
    }
}

#[test]
fn hooks_around_a_module_can_replace_but_not_skip_it() {
    let run = |does| {
        let seen = Seen::default();
        let mut trainer = builder().hook(AroundEnc(does)).hook(Watch(Arc::clone(&seen))).build().unwrap();
        let result = trainer.predict(&mut rows(4));
        (result.map_err(|error| message(&error)), take(&seen).len())
    };
    let (replaced, calls) = run(Does::Replaces);
    assert_eq!(calls, 4, "the modules within a replaced one do not run");
    let (after, calls) = run(Does::ReplacesAfter);
    assert_eq!(calls, 10);
    assert_eq!(replaced.unwrap(), after.unwrap());

    let failed = |does| run(does).0.unwrap_err();
    let start = "hook `it::module_errors::AroundEnc::around` (tests/it/module_errors.rs:_) failed at module_forward of `enc` (predict), epoch 0, batch 0: ";
    let text = "the hook skipped `module_forward`, which must produce an output: call `next.run(cx)`, or `next.replace(cx, |cx| …)` with \
                `cx.set_output(…)` in it";
    assert_eq!(failed(Does::Skips), format!("{start}{text}"));
    assert_eq!(failed(Does::SkipsAndSets), format!("{start}{text}"));
    let text = "the hook replaced `module_forward` without setting an output: call `cx.set_output(…)` in the replacement";
    assert_eq!(failed(Does::ReplacesWithoutOutput), format!("{start}{text}"));
}

/// Fails at `enc.relu`, once.
struct Fails {
    panics: bool,
    calls: u32,
}

#[hook]
impl Fails {
    #[hook(of = "enc.relu")]
    fn after_module_forward(&mut self, _: &mut Cx<AfterModuleForward>) -> Result<()> {
        self.calls += 1;
        match (self.calls, self.panics) {
            (1, true) => panic!("on purpose"),
            (1, false) => Err(Error::msg("on purpose")),
            _ => Ok(()),
        }
    }
}

#[test]
fn an_error_at_a_module_ends_the_run_after_the_forward_pass_and_names_the_module() {
    let seen = Seen::default();
    let hook = Fails { panics: false, calls: 0 };
    let mut trainer = builder().hook(hook).hook(Watch(Arc::clone(&seen))).build().unwrap();
    let error = trainer.fit(&mut rows(4), None).unwrap_err();
    assert_eq!(
        message(&error),
        "hook `it::module_errors::Fails::after_module_forward` (tests/it/module_errors.rs:_) failed at after_module_forward of `enc.relu`, epoch 0, batch 0: \
         on purpose"
    );
    assert_eq!(error.location().unwrap().module.as_deref(), Some("enc.relu"));
    assert_eq!(take(&seen).len(), 4, "no hook runs at a module after the error");
    trainer.fit(&mut rows(4), None).unwrap();
    assert_eq!(take(&seen).len(), 10);
}

#[test]
fn a_hook_around_an_outer_module_can_handle_an_error_within_it() {
    struct Handles(Seen, bool);
    #[hook]
    impl Handles {
        #[hook(of = "enc")]
        fn handle(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
            next.run_or(cx, |cx, error| {
                self.0.lock().unwrap().push(message(&error));
                if self.1 {
                    let zeros = Tensor::zeros([cx.input().size()[0], 8], (Kind::Float, device()));
                    cx.set_output(zeros)?;
                }
                Ok::<_, Error>(())
            })
        }
    }
    let run = |sets| {
        let errors = Seen::default();
        let seen = Seen::default();
        let mut trainer = builder()
            .hook(Handles(Arc::clone(&errors), sets))
            .hook(Watch(Arc::clone(&seen)))
            .hook(Fails { panics: false, calls: 0 })
            .build()
            .unwrap();
        let result = trainer.predict(&mut rows(4)).map_err(|error| message(&error));
        (result, take(&errors), take(&seen))
    };
    let (preds, errors, seen) = run(true);
    assert!(preds.is_ok() && errors.len() == 1 && errors[0].contains("of `enc.relu`"), "{errors:?}");
    assert_eq!(
        seen[seen.len() - 3..],
        ["after enc [4, 8] predict", "before head [4, 8]", "after head [4, 3] predict"]
    );
    let (error, ..) = run(false);
    let text = "the hook handled the error of `module_forward` without setting an output: return the error, or call `cx.set_output(…)`";
    assert!(error.as_ref().unwrap_err().contains(text), "{error:?}");
}

#[test]
fn a_panic_at_a_module_propagates_and_leaves_the_trainer_usable() {
    let seen = Seen::default();
    let hook = Fails { panics: true, calls: 0 };
    let mut trainer = builder().hook(hook).hook(Watch(Arc::clone(&seen))).build().unwrap();
    let note = Arc::clone(&seen);
    let panic = catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut rows(4), None).map(drop)));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
    take(&note);
    trainer.fit(&mut rows(4), None).unwrap();
    assert_eq!(take(&seen).len(), 10);
    // Outside of a run, nothing is observed, even after a panic.
    let input = Tensor::ones([1, 4], (Kind::Float, device()));
    drop(input.apply(trainer.task().net()));
    assert!(take(&seen).is_empty());
}

#[test]
fn a_panic_inside_a_module_reports_the_module_and_the_batch() {
    let vs = nn::VarStore::new(device());
    let net = nn::func(|_: &Tensor| panic!("broken")).named("net.broken");
    let task = Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| pred.sum(Kind::Float));
    let errors = Seen::default();
    let note = Arc::clone(&errors);
    let mut trainer = Trainer::builder(task)
        .discover(Discover::None)
        .on::<AfterModuleForward>("never", |_| {})
        .on::<AfterError>("note", move |cx| note.lock().unwrap().push(cx.error().to_string()))
        .build()
        .unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| trainer.validate(&mut rows(4)).map(drop)));
    assert!(panic.is_err());
    assert_eq!(
        take(&errors),
        [
            "failed at module_forward of `net.broken` (valid), epoch 0, batch 0 on a batch of (Float [4, 4], Int64 [4]): panicked: broken"
        ]
    );
}

#[test]
fn outputs_of_another_shape_dtype_or_device_are_refused_unless_forced() {
    type Replacement = fn(&Tensor) -> Tensor;
    struct Replaces(Replacement, bool);
    #[hook]
    impl Replaces {
        #[hook(of = "enc.fc1")]
        fn after_module_forward(&mut self, cx: &mut Cx<AfterModuleForward>) -> Result<()> {
            let output = (self.0)(cx.output());
            if self.1 {
                cx.force_output(output);
                return Ok(());
            }
            cx.set_output(output)
        }
    }
    let run = |replacement: Replacement, is_forced| {
        let mut trainer = builder().hook(Replaces(replacement, is_forced)).build().unwrap();
        trainer.predict(&mut rows(4)).map_err(|error| message(&error))
    };
    let error = run(|output| output.narrow(0, 0, 2), false).unwrap_err();
    assert!(
        error.ends_with(
            "failed at after_module_forward of `enc.fc1` (predict), epoch 0, batch 0: the output of `enc.fc1` is [4, 8], Float on Cpu, and \
             cannot be replaced by one that is [2, 8], Float on Cpu: call `cx.force_output(…)` if the rest of the network can handle \
             it"
        ),
        "{error}"
    );
    let error = run(|output| output.to_kind(Kind::Double), false).unwrap_err();
    assert!(error.contains("by one that is [4, 8], Double on Cpu"), "{error}");
    assert_eq!(run(|output| output.narrow(0, 0, 2), true).unwrap()[0].size(), [2, 3]);
    // A tensor that the network cannot take causes an error in the layer that receives it.
    let wide: Replacement = |output| output.repeat([1, 2]);
    let panic = catch_unwind(AssertUnwindSafe(|| run(wide, true).map(drop)));
    let text = panic.unwrap_err().downcast_ref::<String>().unwrap().clone();
    assert!(text.contains("mat1 and mat2 shapes cannot be multiplied"), "{text}");
}

#[test]
fn patterns_that_match_no_module_are_refused_at_build() {
    struct Typo;
    #[hook]
    impl Typo {
        #[hook(of = "enc.rleu")]
        fn after_module_forward(&mut self, _: &mut Cx<AfterModuleForward>) {}
    }
    let error = message(&builder().hook(Typo).build().unwrap_err());
    assert!(
        error.contains(
            "`it::module_errors::Typo::after_module_forward` (tests/it/module_errors.rs:_) has `of = \"enc.rleu\"`, but no module has such a name; \
             did you mean `enc.relu`? Otherwise name the module with `.named(…)`, or write `of = optional(\"enc.rleu\")`"
        ),
        "{error}"
    );
    let options = HookOptions::named("typo").of(["head", "zzz*"]);
    let error = message(&builder().on::<AfterModuleForward>(options, |_| {}).build().unwrap_err());
    assert!(
        error.contains(
            "`typo` (tests/it/module_errors.rs:_) has `of = \"zzz*\"`, but no module has such a name: name"
        ),
        "{error}"
    );
    let options = HookOptions::named("elsewhere").of("head");
    let error = message(&builder().on::<AfterStep>(options, |_| {}).build().unwrap_err());
    assert!(
        error.contains("the closure `elsewhere` cannot have `of`, because `after_step` is not a point of a module: remove `of`"),
        "{error}"
    );
    let options = HookOptions::named("empty").of("");
    let error = message(&builder().on::<AfterModuleForward>(options, |_| {}).build().unwrap_err());
    assert!(
        error.contains("`.of(\"\")` of the closure `empty` at `after_module_forward`: expected the name"),
        "{error}"
    );
}

#[test]
fn patterns_are_checked_after_setup_if_a_hook_may_add_layers_there() {
    struct Growing(nn::VarStore, Option<Named<nn::Linear>>);
    impl Task for Growing {
        type Batch = (Tensor, Tensor);
        type Pred = Tensor;
        fn vars(&self) -> &nn::VarStore {
            &self.0
        }
        fn pred(&mut self, (x, _): &Self::Batch, _: Mode) -> Result<Tensor> {
            Ok(x.apply(self.1.as_ref().unwrap()))
        }
        fn loss(&mut self, pred: &Tensor, _: &Self::Batch) -> Result<Tensor> {
            Ok(pred.sum(Kind::Float))
        }
    }
    let run = |pattern: &str| {
        let grow = |cx: &mut Cx<Setup>| {
            let task = cx.task_mut::<Growing>()?;
            let path = task.0.root() / "grown";
            task.1 = Some(nn::linear(&path, 4, 3, Default::default()).named(&path));
            Ok(())
        };
        let mut trainer = Trainer::builder(Growing(nn::VarStore::new(device()), None))
            .discover(Discover::None)
            .on::<Setup>("grow", grow)
            .on::<AfterModuleForward>(HookOptions::named("look").of(pattern), |_| {})
            .build()
            .unwrap();
        trainer.predict(&mut rows(4)).map(drop).map_err(|error| message(&error))
    };
    run("grown").unwrap();
    let error = run("grwon").unwrap_err();
    assert!(
        error.contains("`look` (tests/it/module_errors.rs:_) has `of = \"grwon\"`")
            && error.contains("`grown`?"),
        "{error}"
    );
}

/// The program that the next test runs in a separate process.
#[test]
#[ignore = "run by another test in a child process"]
fn trains_without_calling_a_module() {
    let vs = nn::VarStore::new(device());
    let unused = nn::linear(vs.root() / "unused", 4, 3, Default::default()).named("unused.layer");
    let net = nn::linear(vs.root() / "used", 4, 3, Default::default()).named("used");
    let task = Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| pred.sum(Kind::Float));
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .epochs(2)
        .on::<AfterModuleForward>(HookOptions::named("look").of(["unused.*", "used"]), |_| {})
        .on::<AfterModuleForward>(
            HookOptions::named("quiet").of(Patterns::all().optional("unused.*")),
            |_| {},
        )
        .build()
        .unwrap();
    trainer.fit(&mut rows(4), Some(&mut rows(4))).unwrap();
    drop(unused);
}

#[test]
fn patterns_whose_modules_are_never_called_cause_one_warning() {
    let output =
        crate::support::child_process("module_errors::trains_without_calling_a_module").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("warning: ")).collect();
    assert_eq!(warnings.len(), 1, "{text}");
    assert!(
        warnings[0]
            .contains("has `of = \"unused.*\"`, but the forward pass called no module with such a name"),
        "{text}"
    );
}

#[test]
fn module_names_cannot_be_empty() {
    let vs = nn::VarStore::new(device());
    let panic = catch_unwind(AssertUnwindSafe(|| Name::from(vs.root())));
    let text = panic.unwrap_err().downcast_ref::<&str>().copied().unwrap().to_owned();
    assert!(text.contains("the root path of a `VarStore` has none"), "{text}");
}

#[test]
fn hooks_of_the_task_at_a_module_are_refused() {
    struct Hooked(nn::VarStore);
    impl Task for Hooked {
        type Batch = (Tensor, Tensor);
        type Pred = Tensor;
        fn vars(&self) -> &nn::VarStore {
            &self.0
        }
        fn pred(&mut self, (x, _): &Self::Batch, _: Mode) -> Result<Tensor> {
            Ok(x.shallow_clone())
        }
        fn loss(&mut self, pred: &Tensor, _: &Self::Batch) -> Result<Tensor> {
            Ok(pred.sum(Kind::Float))
        }
    }
    #[hook]
    impl Hooked {
        fn after_module_forward(&mut self, _: &mut Cx<AfterModuleForward>) {}
        fn after_module_backward(&mut self, _: &mut Cx<AfterModuleBackward>) {}
    }
    let _named = crate::model::named_task();
    let task = Hooked(nn::VarStore::new(device()));
    let error = message(&Trainer::builder(task).discover(Discover::None).build().unwrap_err());
    assert_eq!(
        error,
        "the trainer cannot be built: `it::module_errors::Hooked::after_module_forward` \
         (tests/it/module_errors.rs:_) is a hook of the task at `after_module_forward`, which runs while the task is computing and is therefore borrowed: move the hook to a \
         separate type, or to a free function"
    );
}
