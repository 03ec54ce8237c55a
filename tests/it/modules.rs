//! Hooks at named modules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::modules::{self, Name, Named, Patterns};
use trainer::prelude::*;
use trainer::{Module, TrainerBuilder};

use crate::model::{message, rows};
use crate::support::flat_parameters;

type Seen = Arc<Mutex<Vec<String>>>;
type Loss = fn(&Tensor, &Tensor) -> Tensor;
type Net = Supervised<nn::Sequential, Loss>;

/// Takes what was recorded so far.
fn take(seen: &Seen) -> Vec<String> {
    std::mem::take(&mut *seen.lock().unwrap())
}

fn fill(vs: &nn::VarStore) {
    tch::set_num_threads(1);
    let _guard = tch::no_grad_guard();
    for (name, mut tensor) in vs.variables() {
        let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, Device::Cpu));
        tensor.copy_(&((values + name.len() as f64).sin() * 0.3).view_as(&tensor));
    }
}

/// Returns a network of `enc.fc1`, `enc.relu` and `enc.fc2` in `enc`, followed by `head`.
fn task(is_named: bool) -> Net {
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let enc = &root / "enc";
    let fc1 = nn::linear(&enc / "fc1", 4, 8, Default::default());
    let fc2 = nn::linear(&enc / "fc2", 8, 8, Default::default());
    let head = nn::linear(&root / "head", 8, 3, Default::default());
    let net = if is_named {
        let enc =
            modules::seq(&enc).add_as("fc1", fc1).add_as("relu", nn::func(Tensor::relu)).add_as("fc2", fc2);
        nn::seq().add(enc).add(head.named(&root / "head"))
    } else {
        nn::seq().add(nn::seq().add(fc1).add_fn(Tensor::relu).add(fc2)).add(head)
    };
    fill(&vs);
    Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels))
}

fn builder() -> TrainerBuilder<Net> {
    Trainer::builder(task(true)).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

/// Records each call of each module.
struct Watch(Seen);

#[hook]
impl Watch {
    fn before_module(&mut self, cx: &mut Cx<BeforeModule>) {
        self.0.lock().unwrap().push(format!("before {} {:?}", cx.module(), cx.input().size()));
    }
    fn after_module(&mut self, cx: &mut Cx<AfterModule>) {
        self.0.lock().unwrap().push(format!("after {} {:?} {}", cx.module(), cx.output().size(), cx.phase()));
    }
}

const CALLS: [&str; 10] = [
    "before enc [4, 4]",
    "before enc.fc1 [4, 4]",
    "after enc.fc1 [4, 8] predict",
    "before enc.relu [4, 8]",
    "after enc.relu [4, 8] predict",
    "before enc.fc2 [4, 8]",
    "after enc.fc2 [4, 8] predict",
    "after enc [4, 8] predict",
    "before head [4, 8]",
    "after head [4, 3] predict",
];

#[test]
fn hooks_run_before_and_after_each_module_in_the_order_of_the_forward_pass() {
    let seen = Seen::default();
    let mut trainer = builder().hook(Watch(Arc::clone(&seen))).build().unwrap();
    trainer.predict(&mut rows(4)).unwrap();
    assert_eq!(take(&seen), CALLS);
    // In the phases of a fit, also after the phase changed.
    trainer.fit(&mut rows(8), Some(&mut rows(4))).unwrap();
    let calls = take(&seen);
    let count = |phase: &str| calls.iter().filter(|call| call.ends_with(phase)).count();
    assert_eq!((calls.len(), count("train"), count("valid")), (30, 10, 5));
    trainer.predict(&mut rows(4)).unwrap();
    assert_eq!(take(&seen), CALLS);
}

#[test]
fn results_are_the_same_bits_with_and_without_names_and_hooks() {
    let train = |builder: TrainerBuilder<Net>| {
        let mut trainer = builder.epochs(10).build().unwrap();
        trainer.fit(&mut rows(24), Some(&mut rows(8))).unwrap();
        flat_parameters(&trainer)
    };
    let plain = Trainer::builder(task(false)).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let plain = train(plain);
    assert_eq!(train(builder()), plain);
    assert_eq!(train(builder().hook(Watch(Seen::default()))), plain);
    assert_eq!(train(builder().on::<AfterModuleBackward>("gradients", |_| {})), plain);
    struct Around;
    #[hook]
    impl Around {
        #[hook(around = module, of("enc.*", "head"))]
        fn around(&self, cx: &mut Cx<Module>, next: Next<Module>) -> Result<()> {
            next.run(cx)
        }
    }
    assert_eq!(train(builder().hook(Around)), plain);
}

/// Records the modules that a pattern, a list and a field of the value select.
struct Selected {
    seen: Seen,
    modules: Patterns,
}

#[hook]
impl Selected {
    #[hook(before_module, of = "enc.fc?")]
    fn pattern(&mut self, cx: &mut Cx<BeforeModule>) {
        self.seen.lock().unwrap().push(format!("pattern {}", cx.module()));
    }
    #[hook(before_module, of("enc", optional("nowhere.*")))]
    fn list(&mut self, cx: &mut Cx<BeforeModule>) {
        self.seen.lock().unwrap().push(format!("list {}", cx.module()));
    }
    #[hook(before_module, of = self.modules)]
    fn value(&mut self, cx: &mut Cx<BeforeModule>) {
        self.seen.lock().unwrap().push(format!("value {}", cx.module()));
    }
}

#[test]
fn hooks_select_modules_by_name() {
    let seen = Seen::default();
    let (closure, note) = (Arc::clone(&seen), Arc::clone(&seen));
    let options = HookOptions::named("closure").of(Patterns::from("*c2").optional("nothing"));
    let mut trainer = builder()
        .hook(Selected { seen: note, modules: "h*".into() })
        .on::<BeforeModule>(options, move |cx| {
            closure.lock().unwrap().push(format!("closure {}", cx.module()));
        })
        .build()
        .unwrap();
    trainer.predict(&mut rows(4)).unwrap();
    assert_eq!(
        take(&seen),
        ["list enc", "pattern enc.fc1", "pattern enc.fc2", "closure enc.fc2", "value head"]
    );
    let table = trainer.describe_hooks().only_used();
    let row = |hook: &str| table.rows().find(|row| row.hook.ends_with(hook)).unwrap().of.join(" ");
    assert_eq!(row("pattern"), "enc.fc?");
    assert_eq!(row("list"), "enc optional(nowhere.*)");
    assert_eq!(row("value"), "h*");
    assert_eq!(row("closure"), "*c2 optional(nothing)");
    assert!(
        table.to_string().contains("train sanity valid test predict, of enc optional(nowhere.*)"),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_str(&table.json()).unwrap();
    let hooks = json["moments"].as_array().unwrap().iter().flat_map(|it| it["hooks"].as_array().unwrap());
    let of: Vec<_> = hooks.map(|hook| hook["of"].to_string()).collect();
    assert_eq!(
        of,
        [r#"["enc.fc?"]"#, r#"["enc","optional(nowhere.*)"]"#, r#"["h*"]"#, r#"["*c2","optional(nothing)"]"#]
    );
}

#[test]
fn every_observes_whole_batches() {
    let seen = Seen::default();
    let note = Arc::clone(&seen);
    let mut trainer = builder()
        .on::<AfterModule>(HookOptions::named("third").every(3), move |cx| {
            note.lock().unwrap().push(format!("{} {}", cx.counters().batch_idx, cx.module()));
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(16), None).unwrap();
    assert_eq!(take(&seen), ["2 enc.fc1", "2 enc.relu", "2 enc.fc2", "2 enc", "2 head"]);
}

#[test]
fn hooks_replace_inputs_and_outputs() {
    struct Double;
    #[hook]
    impl Double {
        #[hook(of = "head")]
        fn before_module(&mut self, cx: &mut Cx<BeforeModule>) {
            let doubled = cx.input() * 2.0;
            cx.set_input(doubled);
        }
        #[hook(of = "head")]
        fn after_module(&mut self, cx: &mut Cx<AfterModule>) -> Result<()> {
            let next = cx.output() + 1.0;
            cx.set_output(next)
        }
    }
    let plain = builder().build().unwrap().predict(&mut rows(4)).unwrap();
    let task = task(true);
    let bias = task.vars().variables()["head.bias"].shallow_clone();
    let mut trainer = Trainer::builder(task).discover(Discover::None).hook(Double).build().unwrap();
    let changed = trainer.predict(&mut rows(4)).unwrap();
    let expected = (&plain[0] - &bias) * 2.0 + &bias + 1.0;
    assert!(changed[0].allclose(&expected, 1e-5, 1e-6, false));
}

/// What a hook around `enc` does.
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
    #[hook(around = module, of = "enc")]
    fn around(&mut self, cx: &mut Cx<Module>, next: Next<Module>) -> Result<()> {
        let ones = Tensor::ones([cx.input().size()[0], 8], (Kind::Float, Device::Cpu));
        match self.0 {
            Does::Skips => Ok(()),
            Does::SkipsAndSets => cx.set_output(ones),
            Does::ReplacesWithoutOutput => next.replace(cx, |_| {}),
            Does::Replaces => next.replace(cx, |cx| cx.set_output(ones)),
            Does::ReplacesAfter => {
                next.run(cx)?;
                cx.set_output(ones)
            }
        }
    }
}

#[test]
fn hooks_around_a_module_replace_it_but_cannot_skip_it() {
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
    let start = "hook `it::modules::AroundEnc::around` (tests/it/modules.rs:_) failed at module of `enc` (predict), epoch 0, batch 0: ";
    let text = "the hook skipped `module`, which must produce an output: call `next.run(cx)?`, or `next.replace(cx, |cx| …)` with \
                `cx.set_output(…)` in it";
    assert_eq!(failed(Does::Skips), format!("{start}{text}"));
    assert_eq!(failed(Does::SkipsAndSets), format!("{start}{text}"));
    let text =
        "the hook replaced `module` without setting an output: call `cx.set_output(…)` in the replacement";
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
    fn after_module(&mut self, _: &mut Cx<AfterModule>) -> Result<()> {
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
        "hook `it::modules::Fails::after_module` (tests/it/modules.rs:_) failed at after_module of `enc.relu`, epoch 0, batch 0: \
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
        #[hook(around = module, of = "enc")]
        fn handle(&mut self, cx: &mut Cx<Module>, next: Next<Module>) -> Result<()> {
            if let Err(error) = next.run(cx) {
                self.0.lock().unwrap().push(message(&error));
                if self.1 {
                    let zeros = Tensor::zeros([cx.input().size()[0], 8], (Kind::Float, Device::Cpu));
                    cx.set_output(zeros)?;
                }
            }
            Ok(())
        }
    }
    let run = |sets| {
        let (errors, seen) = (Seen::default(), Seen::default());
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
    let text = "the hook handled the error of `module` without setting an output: return the error, or call `cx.set_output(…)`";
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
    // Outside of a run nothing is observed, also after a panic.
    let input = Tensor::ones([1, 4], (Kind::Float, Device::Cpu));
    drop(input.apply(trainer.task().net()));
    assert!(take(&seen).is_empty());
}

#[test]
fn a_panic_of_a_module_itself_names_the_module_and_the_batch() {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::func(|_: &Tensor| panic!("broken")).named("net.broken");
    let task = Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| pred.sum(Kind::Float));
    let errors = Seen::default();
    let note = Arc::clone(&errors);
    let mut trainer = Trainer::builder(task)
        .discover(Discover::None)
        .on::<AfterModule>("never", |_| {})
        .on::<AfterError>("note", move |cx| note.lock().unwrap().push(cx.error().to_string()))
        .build()
        .unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| trainer.validate(&mut rows(4)).map(drop)));
    assert!(panic.is_err());
    assert_eq!(
        take(&errors),
        [
            "failed at module of `net.broken` (valid), epoch 0, batch 0 on a batch of (Float [4, 4], Int64 [4]): panicked: broken"
        ]
    );
}

/// A task that calls modules in every way.
struct Own {
    vs: nn::VarStore,
    shared: Named<nn::Linear>,
    same_name: Named<nn::Linear>,
    scaled: Name,
    in_thread: bool,
    catches_panic: bool,
}

impl Own {
    fn new() -> Self {
        let vs = nn::VarStore::new(Device::Cpu);
        let shared =
            modules::named(vs.root() / "own" / "a", |path| nn::linear(path, 4, 4, Default::default()));
        let same_name = nn::linear(vs.root() / "b", 4, 3, Default::default()).named("own.a");
        fill(&vs);
        Own { vs, shared, same_name, scaled: "own.scaled".into(), in_thread: false, catches_panic: false }
    }
}

impl Task for Own {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, (x, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        if self.in_thread {
            let (x, shared) = (x.shallow_clone(), &mut self.shared);
            return Ok(std::thread::scope(|scope| scope.spawn(move || x.apply(shared)).join().unwrap()));
        }
        if self.catches_panic {
            let bad = Tensor::ones([1, 9], (Kind::Float, Device::Cpu));
            let caught = self.scaled.run(x, |x| {
                assert!(catch_unwind(AssertUnwindSafe(|| bad.apply(&self.shared))).is_err());
                x * 2.0
            });
            return Ok(caught.apply(&self.same_name));
        }
        let x = self.scaled.run(&x.apply(&self.shared).apply(&self.shared), |x| {
            // A module that calls itself.
            self.scaled.run(x, |x| x * 2.0)
        });
        Ok(x.apply(&self.same_name))
    }

    fn loss(&mut self, pred: &Tensor, (x, labels): &Self::Batch) -> Result<Tensor> {
        let extra = x.apply(&self.shared).mean(Kind::Float);
        Ok(pred.cross_entropy_for_logits(labels) + extra)
    }
}

#[test]
fn calls_of_shared_modules_of_a_name_twice_and_within_the_loss_are_all_observed() {
    let seen = Seen::default();
    let mut trainer = Trainer::builder(Own::new())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Watch(Arc::clone(&seen)))
        .build()
        .unwrap();
    trainer.validate(&mut rows(4)).unwrap();
    let after: Vec<_> = take(&seen).into_iter().filter(|call| call.starts_with("after")).collect();
    assert_eq!(
        after,
        [
            "after own.a [4, 4] valid",
            "after own.a [4, 4] valid",
            "after own.scaled [4, 4] valid",
            "after own.scaled [4, 4] valid",
            "after own.a [4, 3] valid",
            "after own.a [4, 4] valid",
        ]
    );
    trainer.task_mut().catches_panic = true;
    trainer.predict(&mut rows(4)).unwrap();
    let calls = take(&seen);
    assert_eq!(
        calls[2..],
        ["after own.scaled [4, 4] predict", "before own.a [4, 4]", "after own.a [4, 3] predict"]
    );
    trainer.task_mut().in_thread = true;
    trainer.predict(&mut rows(4)).unwrap();
    assert!(take(&seen).is_empty(), "modules on other threads are not observed");
}

#[test]
fn a_method_around_modules_within_each_other_is_an_error_with_advice() {
    struct Timer;
    #[hook]
    impl Timer {
        #[hook(around = module, of = "own.scaled")]
        fn time(&mut self, cx: &mut Cx<Module>, next: Next<Module>) -> Result<()> {
            next.run(cx)
        }
    }
    let mut trainer = Trainer::builder(Own::new()).discover(Discover::None).hook(Timer).build().unwrap();
    let error = message(&trainer.predict(&mut rows(4)).unwrap_err());
    assert!(
        error.contains("already running, and borrows its value")
            && error.contains("the modules are within each other"),
        "{error}"
    );
}

#[test]
fn modules_that_a_hook_calls_are_not_observed() {
    struct Calls(Named<nn::Linear>, u32);
    #[hook]
    impl Calls {
        #[hook(of = "head")]
        fn after_module(&mut self, cx: &mut Cx<AfterModule>) -> Result<()> {
            self.1 += 1;
            let output = cx.output().apply(&self.0);
            cx.set_output(output)
        }
    }
    let vs = nn::VarStore::new(Device::Cpu);
    let inner = nn::linear(vs.root(), 3, 3, Default::default()).named("head");
    let mut trainer = builder().hook(Calls(inner, 0)).build().unwrap();
    trainer.predict(&mut rows(8)).unwrap();
    assert_eq!(trainer.hook::<Calls>().unwrap().1, 2);
}

/// Runs another trainer in its forward pass.
struct Outer {
    vs: nn::VarStore,
    own: Named<nn::Linear>,
    inner: Trainer<Net>,
}

impl Task for Outer {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, (x, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        self.inner.predict(&mut rows(4))?;
        Ok(x.apply(&self.own))
    }

    fn loss(&mut self, pred: &Tensor, _: &Self::Batch) -> Result<Tensor> {
        Ok(pred.sum(Kind::Float))
    }
}

#[test]
fn nested_trainers_observe_their_own_modules() {
    for is_inner_observed in [false, true] {
        let (outside, inside) = (Seen::default(), Seen::default());
        let inner = if is_inner_observed { builder().hook(Watch(Arc::clone(&inside))) } else { builder() };
        let vs = nn::VarStore::new(Device::Cpu);
        let own = nn::linear(vs.root(), 4, 3, Default::default()).named("outer");
        let task = Outer { own, inner: inner.build().unwrap(), vs };
        let builder = Trainer::builder(task).discover(Discover::None).hook(Watch(Arc::clone(&outside)));
        builder.build().unwrap().predict(&mut rows(4)).unwrap();
        assert_eq!(take(&outside), ["before outer [4, 4]", "after outer [4, 3] predict"]);
        assert_eq!(take(&inside).len(), if is_inner_observed { 10 } else { 0 });
    }
}

#[test]
fn outputs_of_another_shape_dtype_or_device_are_refused_unless_forced() {
    type Replacement = fn(&Tensor) -> Tensor;
    struct Replaces(Replacement, bool);
    #[hook]
    impl Replaces {
        #[hook(of = "enc.fc1")]
        fn after_module(&mut self, cx: &mut Cx<AfterModule>) -> Result<()> {
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
            "failed at after_module of `enc.fc1` (predict), epoch 0, batch 0: the output of `enc.fc1` is [4, 8], Float on Cpu, and \
             cannot be replaced by one that is [2, 8], Float on Cpu: call `cx.force_output(…)` if the rest of the network can take \
             it"
        ),
        "{error}"
    );
    let error = run(|output| output.to_kind(Kind::Double), false).unwrap_err();
    assert!(error.contains("by one that is [4, 8], Double on Cpu"), "{error}");
    assert_eq!(run(|output| output.narrow(0, 0, 2), true).unwrap()[0].size(), [2, 3]);
    // A tensor that the rest of the network cannot take is an error of the layer that it reaches.
    let wide: Replacement = |output| output.repeat([1, 2]);
    let panic = catch_unwind(AssertUnwindSafe(|| run(wide, true).map(drop)));
    let text = panic.unwrap_err().downcast_ref::<String>().unwrap().clone();
    assert!(text.contains("mat1 and mat2 shapes cannot be multiplied"), "{text}");
}

#[test]
fn patterns_that_match_no_module_are_refused_when_the_trainer_is_built() {
    struct Typo;
    #[hook]
    impl Typo {
        #[hook(of = "enc.rleu")]
        fn after_module(&mut self, _: &mut Cx<AfterModule>) {}
    }
    let error = message(&builder().hook(Typo).build().unwrap_err());
    assert!(
        error.contains(
            "`it::modules::Typo::after_module` (tests/it/modules.rs:_) has `of = \"enc.rleu\"`, but no module has such a name; \
             did you mean `enc.relu`? Otherwise name the module with `.named(…)`, or write `of = optional(\"enc.rleu\")`"
        ),
        "{error}"
    );
    let options = HookOptions::named("typo").of(["head", "zzz*"]);
    let error = message(&builder().on::<AfterModule>(options, |_| {}).build().unwrap_err());
    assert!(
        error.contains(
            "`typo` (tests/it/modules.rs:_) has `of = \"zzz*\"`, but no module has such a name: name"
        ),
        "{error}"
    );
    let options = HookOptions::named("elsewhere").of("head");
    let error = message(&builder().on::<AfterStep>(options, |_| {}).build().unwrap_err());
    assert!(
        error.contains("the closure `elsewhere` cannot have `of`, because `after_step` is not a point of a module: remove it"),
        "{error}"
    );
    let options = HookOptions::named("empty").of("");
    let error = message(&builder().on::<AfterModule>(options, |_| {}).build().unwrap_err());
    assert!(
        error.contains("`.of(\"\")` of the closure `empty` at `after_module`: expected the name"),
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
        let mut trainer = Trainer::builder(Growing(nn::VarStore::new(Device::Cpu), None))
            .discover(Discover::None)
            .on::<Setup>("grow", grow)
            .on::<AfterModule>(HookOptions::named("look").of(pattern), |_| {})
            .build()
            .unwrap();
        trainer.predict(&mut rows(4)).map(drop).map_err(|error| message(&error))
    };
    run("grown").unwrap();
    let error = run("grwon").unwrap_err();
    assert!(
        error.contains("`look` (tests/it/modules.rs:_) has `of = \"grwon\"`") && error.contains("`grown`?"),
        "{error}"
    );
}

/// The program that the next test runs. Not a test by itself.
#[test]
#[ignore = "the program of another test"]
fn child_process() {
    let vs = nn::VarStore::new(Device::Cpu);
    let unused = nn::linear(vs.root() / "unused", 4, 3, Default::default()).named("unused.layer");
    let net = nn::linear(vs.root() / "used", 4, 3, Default::default()).named("used");
    let task = Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| pred.sum(Kind::Float));
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .epochs(2)
        .on::<AfterModule>(HookOptions::named("look").of(["unused.*", "used"]), |_| {})
        .on::<AfterModule>(HookOptions::named("quiet").of(Patterns::all().optional("unused.*")), |_| {})
        .build()
        .unwrap();
    trainer.fit(&mut rows(4), Some(&mut rows(4))).unwrap();
    drop(unused);
}

#[test]
fn patterns_whose_modules_are_never_called_are_warned_of_once() {
    let output = crate::support::child_process("modules::child_process").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("warning: ")).collect();
    assert_eq!(warnings.len(), 1, "{text}");
    assert!(
        warnings[0].contains("has `of = \"unused.*\"`, but the forward pass called no module of such a name"),
        "{text}"
    );
}

#[test]
fn names_cannot_be_empty() {
    let vs = nn::VarStore::new(Device::Cpu);
    let panic = catch_unwind(AssertUnwindSafe(|| Name::from(vs.root())));
    let text = panic.unwrap_err().downcast_ref::<&str>().copied().unwrap().to_owned();
    assert!(text.contains("the root path of a `VarStore` has no name"), "{text}");
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
        fn after_module(&mut self, _: &mut Cx<AfterModule>) {}
        fn after_module_backward(&mut self, _: &mut Cx<AfterModuleBackward>) {}
    }
    let task = Hooked(nn::VarStore::new(Device::Cpu));
    let error = message(&Trainer::builder(task).discover(Discover::None).build().unwrap_err());
    assert_eq!(
        error,
        "the trainer cannot be built: `it::modules::Hooked::after_module` \
         (tests/it/modules.rs:_) is a hook of the task at `after_module`, where the task computes and is borrowed: move the hook to a \
         separate type, or to a free function"
    );
}

#[test]
fn after_module_backward_has_the_gradient_of_each_output() {
    let grads: Arc<Mutex<Vec<(String, Tensor)>>> = Arc::default();
    let note = Arc::clone(&grads);
    let mut trainer = builder()
        .on::<AfterModuleBackward>("note", move |cx| {
            note.lock().unwrap().push((cx.module().to_owned(), cx.output_grad().copy()));
        })
        .build()
        .unwrap();
    // By hand, from the same weights and batch.
    let task = task(false);
    let (x, labels) = rows(4).batches(0, 0).unwrap().next().unwrap().unwrap();
    let variables = task.vars().variables();
    let layer = |x: &Tensor, name: &str| {
        x.linear(&variables[&format!("{name}.weight")], Some(&variables[&format!("{name}.bias")]))
    };
    let fc1 = layer(&x, "enc.fc1");
    let relu = fc1.relu();
    let fc2 = layer(&relu, "enc.fc2");
    let head = layer(&fc2, "head");
    let loss = head.cross_entropy_for_logits(&labels);
    let expected = Tensor::run_backward(&[loss], &[&head, &fc2, &fc2, &relu, &fc1], false, false);

    trainer.fit(&mut rows(4), None).unwrap();
    let grads = std::mem::take(&mut *grads.lock().unwrap());
    let names: Vec<_> = grads.iter().map(|(name, _)| name.as_str()).collect();
    // `enc` and its last layer have the same output.
    assert_eq!(names, ["head", "enc", "enc.fc2", "enc.relu", "enc.fc1"]);
    for ((name, grad), expected) in grads.iter().zip(&expected) {
        assert_eq!(grad, expected, "{name}");
    }
}

#[test]
fn after_module_backward_fires_in_a_replaced_backward_pass() {
    struct Own;
    #[hook]
    impl Own {
        #[hook(around = backward)]
        fn own(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
            next.replace(cx, |cx| cx.backward(&cx.scaled_loss()))
        }
    }
    let (seen, note) = (Seen::default(), Seen::default());
    let inner = Arc::clone(&seen);
    let build = |fails: bool| {
        let inner = Arc::clone(&inner);
        builder().hook(Own).on::<AfterModuleBackward>("note", move |cx| {
            inner.lock().unwrap().push(cx.module().to_owned());
            if fails { Err(Error::msg("on purpose")) } else { Ok(()) }
        })
    };
    build(false).build().unwrap().fit(&mut rows(8), None).unwrap();
    assert_eq!(take(&seen).len(), 10);
    let error = build(true).build().unwrap().fit(&mut rows(8), None).unwrap_err();
    assert!(
        message(&error).contains("failed at after_module_backward of `head`, epoch 0, batch 0: on purpose"),
        "{error}"
    );
    assert_eq!(take(&seen), ["head"]);
    drop(note);
}

#[test]
fn gradients_of_modules_do_not_accumulate_memory() {
    let mut trainer = builder().epochs(300).on::<AfterModuleBackward>("look", |_| {}).build().unwrap();
    // A failed backward pass leaves nothing for the next.
    trainer.fit(&mut rows(8), None).unwrap();
    trainer.validate(&mut rows(8)).unwrap();
    let counted = Arc::new(Mutex::new(0));
    let drops = Arc::clone(&counted);
    struct Counted(Arc<Mutex<u32>>);
    impl Drop for Counted {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let guard = Counted(drops);
    {
        let weight = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let hidden = &weight * 2.0;
        hidden.on_grad(move |_| assert_eq!(*guard.0.lock().unwrap(), 0)).unwrap();
        hidden.sum(Kind::Float).backward();
        assert_eq!(*counted.lock().unwrap(), 0);
    }
    assert_eq!(*counted.lock().unwrap(), 1, "the closure is dropped with the graph");
}

#[test]
fn on_grad_observes_and_replaces_gradients_and_can_be_removed() {
    let weight = || Tensor::from_slice(&[1.0f32, -2.0, 3.0]).set_requires_grad(true);
    let w = weight();
    let hidden = &w * 2.0;
    hidden.on_grad(|grad| grad * 10.0).unwrap();
    hidden.square().sum(Kind::Float).backward();
    assert_eq!(w.grad(), Tensor::from_slice(&[80.0f32, -160.0, 240.0])); // 2 · 10 · 2 · hidden

    let w = weight();
    let hidden = &w * 2.0;
    let handle = hidden.on_grad(|_| panic!("it was removed")).unwrap();
    handle.remove().unwrap();
    let mut count = 0;
    hidden
        .on_grad(move |grad| {
            count += 1;
            (count > 1).then(|| grad * 0.0)
        })
        .unwrap();
    hidden.sum(Kind::Float).backward();
    assert_eq!(w.grad(), Tensor::from_slice(&[2.0f32; 3]));

    // On a leaf it receives the gradient that is added.
    let w = weight();
    w.on_grad(|grad| grad + 1.0).unwrap();
    w.sum(Kind::Float).backward();
    assert_eq!(w.grad(), Tensor::from_slice(&[2.0f32; 3]));
}

#[test]
fn misuse_of_on_grad_is_an_error() {
    let plain = Tensor::ones([1], (Kind::Float, Device::Cpu));
    let error = plain.on_grad(|_| {}).unwrap_err().to_string();
    assert!(error.contains("the tensor requires no gradient"), "{error}");
    assert!(Tensor::new().on_grad(|_| {}).is_err());
    let fails = |closure: fn(&Tensor) -> Tensor| {
        let hidden = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true) * 2.0;
        hidden.on_grad(closure).unwrap();
        hidden.sum(Kind::Float).f_backward().unwrap_err().to_string()
    };
    let error = fails(|_| panic!("in a closure"));
    assert!(error.contains("a closure of `on_grad` panicked: in a closure"), "{error}");
    let error = fails(|_| Tensor::ones([3], (Kind::Float, Device::Cpu)));
    assert!(error.contains("has changed the size of value"), "{error}");
}

#[test]
fn names_of_layers_of_sequences_follow_their_indices() {
    let seen = Seen::default();
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root() / "net";
    let net = modules::seq_t(&root)
        .add(nn::linear(&root / 0, 4, 8, Default::default()))
        .add(nn::batch_norm1d(&root / 1, 8, Default::default()))
        .add_fn(Tensor::relu)
        .add_fn_t(|xs, train| xs.dropout(0.1, train))
        .add_named(modules::seq(&root / "out").add(nn::linear(&root / "out" / 0, 8, 3, Default::default())));
    assert_eq!(net.len(), 5);
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let note = Arc::clone(&seen);
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterModule>("look", move |cx| note.lock().unwrap().push(cx.module().to_owned()))
        .build()
        .unwrap();
    let (x, y) = rows(4).batches(0, 0).unwrap().next().unwrap().unwrap();
    trainer.fit(&mut from_fn(|_| [(x.shallow_clone(), y.shallow_clone())]), None).unwrap();
    assert_eq!(take(&seen), ["net.0", "net.1", "net.2", "net.3", "net.out.0", "net.out", "net"]);
}

#[test]
fn the_summary_lists_shapes_parameters_and_operations() {
    let task = task(true);
    let input = Tensor::zeros([16, 4], (Kind::Float, Device::Cpu));
    let summary = modules::summary(task.vars(), task.net(), &input).unwrap();
    insta::assert_snapshot!(summary);
    assert_eq!(summary.get("enc").unwrap().parameters, 4 * 8 + 8 + 8 * 8 + 8);

    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let grouped = nn::ConvConfig { stride: 2, padding: 1, groups: 2, bias: false, ..Default::default() };
    let transposed = nn::ConvTransposeConfig { stride: 2, ..Default::default() };
    let net = modules::seq_t("net")
        .add_as("conv", nn::conv2d(&root / "conv", 4, 8, 3, grouped))
        .add_as("bn", nn::batch_norm2d(&root / "bn", 8, Default::default()))
        .add_as("up", nn::conv_transpose2d(&root / "up", 8, 2, 2, transposed));
    let input = Tensor::zeros([3, 4, 8, 8], (Kind::Float, Device::Cpu));
    let summary = modules::summary(&vs, &net, &input).unwrap();
    let flops = |name: &str| summary.get(name).unwrap().flops;
    assert_eq!(flops("net.conv"), 2 * (3 * 8 * 4 * 4) * (2 * 3 * 3));
    assert_eq!(flops("net.up"), 2 * (3 * 8 * 4 * 4) * (2 * 2 * 2));
    assert_eq!((flops("net.bn"), flops("net")), (0, summary.flops()));

    let error = modules::summary(&vs, &nn::func(Tensor::relu), &input).unwrap_err().to_string();
    assert!(error.contains("the forward pass called no named module"), "{error}");
}

#[test]
fn the_summary_in_the_guide_is_that_of_its_model() {
    #[derive(Debug)]
    struct Block(Name);
    impl nn::Module for Block {
        fn forward(&self, xs: &Tensor) -> Tensor {
            self.0.run(xs, Tensor::relu)
        }
    }
    let guide = include_str!("../../trainer/src/guide/modules.md");
    let shown = guide.split_once("```text\n").unwrap().1.split_once("\n```").unwrap().0;
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let encoder = &root / "encoder";
    drop(nn::linear(&root / "block" / "fc", 16, 16, Default::default()));
    let net = nn::seq_t()
        .add(
            modules::seq_t(&encoder)
                .add(nn::linear(&encoder / 0, 8, 32, Default::default()))
                .add_fn(Tensor::relu)
                .add_as("out", nn::linear(&encoder / "out", 32, 16, Default::default())),
        )
        .add(nn::batch_norm1d(&root / "norm", 16, Default::default()).named_t("norm"))
        .add(Block("block.branch".into()))
        .add(modules::named(&root / "head", |path| nn::linear(path, 16, 2, Default::default())));
    let summary = modules::summary(&vs, &net, &Tensor::zeros([4, 8], (Kind::Float, Device::Cpu))).unwrap();
    assert_eq!(summary.to_string(), shown, "actual on the left, documented on the right");
}
