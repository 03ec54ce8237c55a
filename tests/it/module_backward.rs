//! The moments of a named module inside of the backward pass: `before_module_backward` and
//! `after_module_grads`.

use std::sync::{Arc, Mutex};

use trainer::hooks::{DataParallel, Sam};
use trainer::modules::{self, Name};
use trainer::prelude::*;
use trainer::profile::SpanKind;
use trainer::testing::Ranks;
use trainer::{Tape, TrainerBuilder};

use crate::model::{message, rows};
use crate::modules::{Net, Seen, builder, fill, take, task};
use crate::support::{exact_state, flat_parameters, scratch};

/// Records the moments of the backward pass.
#[derive(Clone, Default)]
struct Moments(Seen);

#[hook]
impl Moments {
    fn before(&mut self, cx: &Cx<BeforeModuleBackward>) {
        self.0.lock().unwrap().push(format!("before {} {:?}", cx.module(), cx.output_grad().size()));
    }
    fn grads(&mut self, cx: &Cx<AfterModuleGrads>) {
        self.0.lock().unwrap().push(format!("grads {}", cx.module()));
    }
    fn after(&mut self, cx: &Cx<AfterModuleBackward>) {
        self.0.lock().unwrap().push(format!("after {}", cx.module()));
    }
    fn end(&mut self, _: &Cx<AfterBackward>) {
        self.0.lock().unwrap().push("end".to_owned());
    }
}

const PASS: [&str; 15] = [
    "before head [4, 3]",
    "grads head",
    "before enc [4, 8]",
    "before enc.fc2 [4, 8]",
    "grads enc.fc2",
    "before enc.relu [4, 8]",
    "before enc.fc1 [4, 8]",
    "grads enc.fc1",
    "grads enc",
    "after head",
    "after enc",
    "after enc.fc2",
    "after enc.relu",
    "after enc.fc1",
    "end",
];

/// Returns a trainer of the network of `modules.rs`, on the CPU: elsewhere, `build` refuses hooks
/// inside of the pass.
fn on_cpu() -> TrainerBuilder<Net> {
    builder().device(Device::Cpu)
}

/// Trains with the hook, and returns what it records.
fn moments<T: Task<Batch = (Tensor, Tensor)>>(builder: TrainerBuilder<T>, count: i64) -> Vec<String> {
    let hook = Moments::default();
    let mut trainer = builder.hook(hook.clone()).build().unwrap();
    trainer.fit(&mut rows(count), None).unwrap();
    take(&hook.0)
}

type Loss = fn(&Tensor, &Tensor) -> Tensor;

/// Returns a builder for a network that `build` makes.
fn builder_of(
    build: impl FnOnce(&nn::Path<'_>) -> Box<dyn Fn(&Tensor) -> Tensor + Send>,
) -> TrainerBuilder<Supervised<nn::Func<'static>, Loss>> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = build(&vs.root());
    fill(&vs);
    let loss: Loss = |logits, labels| logits.cross_entropy_for_logits(labels);
    Trainer::builder(Supervised::new(vs, nn::func(net), loss))
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
}

fn linear(path: nn::Path<'_>, inputs: i64, outputs: i64) -> modules::Named<nn::Linear> {
    modules::named(path, |path| nn::linear(path, inputs, outputs, Default::default()))
}

#[test]
fn both_moments_fire_while_the_pass_runs() {
    assert_eq!(moments(on_cpu(), 8), [PASS, PASS].concat());
}

#[test]
fn the_moments_fire_in_each_pass_of_an_accumulation_window() {
    assert_eq!(moments(on_cpu().accumulate(2), 16), [PASS; 4].concat());
}

#[test]
fn gradients_of_a_module_are_those_after_the_pass() {
    type Found = Arc<Mutex<Vec<(String, Tensor)>>>;
    let found = Found::default();
    let of_modules = Arc::clone(&found);
    let checked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&checked);
    let mut trainer = on_cpu()
        .observe::<AfterModuleGrads>("keep", move |cx| {
            let grads = cx.module_grads()?;
            of_modules.lock().unwrap().extend(grads.map(|(name, grad)| (name.to_string(), grad.copy())));
            Ok::<(), Error>(())
        })
        .observe::<AfterBackward>("compare", move |cx| {
            for (name, grad) in found.lock().unwrap().drain(..) {
                assert_eq!(cx.grad(&name)?, grad, "{name}");
                *count.lock().unwrap() += 1;
            }
            Ok::<(), Error>(())
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    // In each of two passes: two in `head`, two in each layer of `enc`, and all four in `enc`.
    assert_eq!(*checked.lock().unwrap(), 2 * (2 + 4 + 4));
}

#[test]
fn results_are_bit_identical_with_hooks_inside_of_the_pass() {
    let train = |builder: TrainerBuilder<_>| {
        let mut trainer = builder.epochs(5).accumulate(2).check_observers(true).build().unwrap();
        trainer.fit(&mut rows(24), Some(&mut rows(8))).unwrap();
        flat_parameters(&trainer)
    };
    assert_eq!(train(on_cpu().hook(Moments::default())), train(on_cpu()));
}

#[test]
fn a_module_that_is_called_twice_has_two_outputs_and_one_set_of_gradients() {
    let builder = builder_of(|root| {
        let (first, shared, head) =
            (linear(root / "first", 4, 6), linear(root / "shared", 6, 6), linear(root / "head", 6, 3));
        Box::new(move |xs| xs.apply(&first).apply(&shared).tanh().apply(&shared).apply(&head))
    });
    let found = moments(builder, 4);
    assert_eq!(
        found[..8],
        [
            "before head [4, 3]",
            "grads head",
            "before shared [4, 6]",
            "before shared [4, 6]",
            "grads shared",
            "before first [4, 6]",
            "grads first",
            "after head"
        ]
    );
}

#[test]
fn gradients_of_tied_weights_are_complete_after_both_uses() {
    // `embed` owns the weight, which `decode` uses too; `decode` has no parameters of its own.
    let builder = builder_of(|root| {
        let (embed, middle, head) = (
            nn::linear(root / "embed", 4, 6, Default::default()),
            linear(root / "middle", 6, 6),
            linear(root / "head", 4, 3),
        );
        let (embed_name, decode_name) = (Name::new("embed"), Name::new("decode"));
        Box::new(move |xs| {
            let hidden = embed_name.run(xs, |xs| xs.apply(&embed)).apply(&middle);
            decode_name.run(&hidden, |xs| xs.matmul(&embed.ws)).apply(&head)
        })
    });
    let found = moments(builder, 4);
    assert_eq!(
        found[..7],
        [
            "before head [4, 3]",
            "grads head",
            "before decode [4, 4]",
            "before middle [4, 6]",
            "grads middle",
            "before embed [4, 6]",
            "grads embed"
        ]
    );
}

#[test]
fn frozen_parameters_are_not_awaited() {
    let frozen = |names: &'static [&'static str]| {
        let builder = on_cpu().on::<BeforeFit>("freeze", move |cx| {
            for name in names {
                let _ = cx.vars().get(name).unwrap().set_requires_grad(false);
            }
        });
        moments(builder, 4)
    };
    // A module without trained parameters has no gradients, but an output with a gradient.
    let found = frozen(&["enc.fc2.weight", "enc.fc2.bias"]);
    assert!(
        !found.contains(&"grads enc.fc2".to_owned()) && found.contains(&"before enc.fc2 [4, 8]".to_owned())
    );
    assert!(found.contains(&"grads enc".to_owned()));
    assert_eq!(frozen(&["enc.fc2.bias"]), PASS);
    // The output of a frozen first layer needs no gradient.
    let found = frozen(&["enc.fc1.weight", "enc.fc1.bias", "enc.fc2.weight", "enc.fc2.bias"]);
    assert_eq!(found, ["before head [4, 3]", "grads head", "after head", "end"]);
}

#[test]
fn parameters_that_the_loss_does_not_depend_on_are_not_awaited() {
    let builder = builder_of(|root| {
        let (block, used) = (Name::new("block"), linear(root / "block" / "used", 4, 3));
        let unused = linear(root / "block" / "unused", 4, 3);
        Box::new(move |xs| {
            block.run(xs, |xs| {
                let output = xs.apply(&used);
                let _ = xs.apply(&unused).detach();
                output
            })
        })
    });
    let expected =
        ["before block [4, 3]", "before block.used [4, 3]", "grads block.used", "grads block", "after block"];
    assert_eq!(moments(builder, 4)[..5], expected);
}

#[test]
fn a_module_that_returns_a_parameter_fires_once_in_each_pass() {
    let builder = builder_of(|root| {
        let (scale, name) = (root.var("scale", &[3], nn::Init::Const(1.0)), Name::new("scale"));
        let head = linear(root / "head", 4, 3);
        Box::new(move |xs| xs.apply(&head) * name.run(xs, |_| scale.shallow_clone()))
    });
    let found = moments(builder, 12);
    for line in ["before scale [3]", "grads scale", "after scale"] {
        assert_eq!(found.iter().filter(|found| *found == line).count(), 3, "{line}: {found:?}");
    }
}

#[test]
fn the_gradient_of_an_output_can_be_replaced() {
    let gradients = |replaces: bool| {
        let found: Arc<Mutex<Vec<(String, Tensor)>>> = Arc::default();
        let note = Arc::clone(&found);
        let mut builder = on_cpu()
            .on::<AfterModuleBackward>(HookOptions::named("note").of("enc"), {
                let note = Arc::clone(&note);
                move |cx| note.lock().unwrap().push(("enc".to_owned(), cx.output_grad().copy()))
            })
            .on::<AfterBackward>("all", move |cx| {
                let grads = cx.grads().map(|(name, grad)| (name.to_string(), grad.copy()));
                note.lock().unwrap().extend(grads);
            });
        if replaces {
            builder = builder.on::<BeforeModuleBackward>(HookOptions::named("scale").of("enc"), |cx| {
                let scaled = cx.output_grad() * 4.0;
                cx.set_output_grad(scaled)
            });
        }
        builder.build().unwrap().fit(&mut rows(4), None).unwrap();
        std::mem::take(&mut *found.lock().unwrap())
    };
    for ((name, plain), (_, replaced)) in gradients(false).into_iter().zip(gradients(true)) {
        let factor = if name.starts_with("enc") { 4.0 } else { 1.0 };
        assert_eq!(plain * factor, replaced, "{name}"); // a power of two is exact
    }
    let mut trainer = on_cpu()
        .on::<BeforeModuleBackward>(HookOptions::named("wrong").of("head"), |cx| {
            cx.set_output_grad(Tensor::zeros([3, 3], (Kind::Float, Device::Cpu)))
        })
        .build()
        .unwrap();
    let error = trainer.fit(&mut rows(4), None).unwrap_err();
    let expected = "hook `wrong` (tests/it/module_backward.rs:_) failed at before_module_backward of `head`, epoch 0, batch 0: the gradient of the output of \
                    `head` is [4, 3], Float on Cpu, and cannot be replaced by one that is [3, 3], Float on Cpu";
    assert!(message(&error).contains(expected), "{}", message(&error));
}

#[test]
fn a_hook_that_fails_inside_of_the_pass_ends_the_run_with_its_place() {
    let fails = |panics: bool| {
        let seen = Seen::default();
        let note = Arc::clone(&seen);
        let trainer = on_cpu()
            .hook(Moments(Arc::clone(&seen)))
            .on::<AfterModuleGrads>(HookOptions::named("fails").of("enc.fc2").ord(-1), move |_| {
                note.lock().unwrap().push("fails".to_owned());
                assert!(!panics, "panics on purpose");
                Err::<(), _>(Error::msg("on purpose"))
            })
            .build()
            .unwrap();
        (trainer, seen)
    };
    let (mut trainer, seen) = fails(false);
    let error = trainer.fit(&mut rows(4), None).unwrap_err();
    let expected = "hook `fails` (tests/it/module_backward.rs:_) failed at after_module_grads of `enc.fc2`, epoch 0, batch 0: on purpose";
    assert!(message(&error).contains(expected), "{}", message(&error));
    // No hook runs after it, and the gradients of the pass are dropped.
    assert_eq!(take(&seen), [&PASS[..4], &["fails"]].concat());
    assert!(trainer.vars().parameters().all(|var| !var.tensor.grad().defined()));
    // The trainer can be used again.
    assert!(trainer.fit(&mut rows(4), None).is_err());
    assert_eq!(take(&seen), [&PASS[..4], &["fails"]].concat());

    let (mut trainer, seen) = fails(true);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trainer.fit(&mut rows(4), None)));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"panics on purpose"));
    assert_eq!(take(&seen), [&PASS[..4], &["fails"]].concat());
}

/// Handles the errors of the backward pass.
struct Tolerant;

#[hook]
impl Tolerant {
    fn around(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.run_or(cx, |_, _| {})
    }
}

#[test]
fn the_error_of_a_hook_inside_of_the_pass_can_be_handled_around_it() {
    let mut trainer = on_cpu()
        .hook(Tolerant)
        .on::<BeforeModuleBackward>(HookOptions::named("fails").of("enc"), |cx| {
            if cx.counters().batch_idx == 0 { Err(Error::msg("on purpose")) } else { Ok(()) }
        })
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows(12), None).unwrap();
    assert_eq!(summary.counters.optimizer_steps, 2, "the first batch has no gradients");
}

/// Runs the built-in backward pass, and one of a penalty.
struct Twice;

#[hook]
impl Twice {
    fn twice(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.replace(cx, |cx| {
            cx.backward(&cx.scaled_loss())?;
            let penalty = cx.vars().get("head.weight")?.square().sum(Kind::Float);
            cx.backward(&penalty)
        })
    }
}

#[test]
fn the_moments_fire_in_a_pass_that_a_hook_runs() {
    // The penalty depends on `head` alone, and on no output.
    let both = [&PASS[..14], &["grads head", "end"]].concat();
    assert_eq!(moments(on_cpu().hook(Twice), 8), [both.clone(), both].concat());
    // A pass that only computes the gradients again, for the step of a training method, has no
    // hooks.
    assert_eq!(moments(on_cpu().hook(Sam::new(0.05)), 4), PASS);
}

#[test]
fn a_hook_can_run_a_backward_pass_of_its_own_through_the_same_parameter() {
    let seen = Moments::default();
    let mut trainer = on_cpu()
        .hook(seen.clone())
        .on::<AfterModuleGrads>(HookOptions::named("own").of("head"), |cx| {
            let weight = cx.vars().get("head.weight")?;
            let before = weight.grad().copy();
            tch::with_grad(|| weight.sum(Kind::Float).backward());
            assert_eq!(weight.grad(), before + 1.0);
            Ok::<(), Error>(())
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(4), None).unwrap();
    assert_eq!(take(&seen.0), PASS);
}

#[test]
fn only_the_modules_of_the_current_optimizer_have_gradients() {
    struct Parts(Net);
    impl Task for Parts {
        type Batch = (Tensor, Tensor);
        type Pred = Tensor;
        fn vars(&self) -> &nn::VarStore {
            self.0.vars()
        }
        fn pred(&mut self, batch: &Self::Batch, mode: Mode) -> Result<Tensor> {
            self.0.pred(batch, mode)
        }
        fn loss(&mut self, pred: &Tensor, batch: &Self::Batch) -> Result<Tensor> {
            self.0.loss(pred, batch)
        }
        fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
            for part in ["enc", "head"] {
                let pred = step.pred()?;
                let loss = step.loss(pred)?;
                let gradients = step.backward_of(part, loss)?;
                let _ = step.opt_step(gradients)?;
            }
            Ok(step.done())
        }
    }
    let builder = Trainer::builder(Parts(task(true)))
        .optimizer_of("enc", Sgd::new(0.1))
        .optimizer_of("head", Sgd::new(0.1))
        .device(Device::Cpu)
        .discover(Discover::None);
    let found = moments(builder, 4);
    let grads: Vec<_> = found.iter().filter(|line| line.starts_with("grads") || *line == "end").collect();
    assert_eq!(grads, ["grads enc.fc2", "grads enc.fc1", "grads enc", "end", "grads head", "end"]);
}

#[test]
fn several_ranks_are_bit_identical_with_and_without_hooks_inside_of_the_pass() {
    let run = |observes: bool, folder: Option<&std::path::Path>| -> Result<Vec<(String, Vec<u64>)>> {
        // Small buckets: some are being averaged while others are filled.
        let mut builder = on_cpu().hook(DataParallel::new().bucket_bytes(64)).accumulate(2);
        if observes {
            builder = builder.hook(Moments::default()).check_observers(true);
        }
        if let Some(folder) = folder {
            builder = builder.run_folder(folder).tape(Tape::full());
        }
        let mut trainer = builder.build()?;
        trainer.fit(&mut rows(24), None)?;
        Ok(exact_state(&trainer))
    };
    let folder = scratch("module_backward_ranks");
    let states = Ranks::new(2).run(|| Ok([run(false, None)?, run(true, None)?, run(true, Some(&folder))?]));
    for [plain, observed, taped] in states.unwrap() {
        assert_eq!(plain, observed);
        assert_eq!(plain, taped);
    }
}

#[test]
fn gradients_that_are_being_averaged_cannot_be_read() {
    let errors = Ranks::new(2).run(|| {
        let seen = Seen::default();
        let note = Arc::clone(&seen);
        let mut trainer = on_cpu()
            .hook(DataParallel::new())
            .accumulate(2)
            .on::<AfterModuleGrads>(HookOptions::named("reads").of("enc"), move |cx| {
                let count = cx.module_grads()?.count();
                note.lock().unwrap().push(format!("batch {}: {count}", cx.counters().batch_idx));
                Ok::<(), Error>(())
            })
            .build()?;
        let error = trainer.fit(&mut rows(16), None).unwrap_err();
        Ok((take(&seen), message(&error)))
    });
    for (seen, error) in errors.unwrap() {
        assert_eq!(seen, ["batch 0: 4"], "the gradients of the first pass are not averaged yet");
        assert!(error.contains("failed at after_module_grads of `enc`, epoch 0, batch 1"), "{error}");
        assert!(
            error.contains("the gradients of `enc` cannot be read while the backward pass runs"),
            "{error}"
        );
    }
}

#[test]
fn a_hook_that_waits_for_gradients_of_modules_without_parameters_is_an_error() {
    let error = |of: &'static str| {
        let options = HookOptions::named("waits").of(of);
        on_cpu().on::<AfterModuleGrads>(options, |_| {}).build().map(drop)
    };
    error("enc.fc?").unwrap();
    error("*").unwrap();
    let expected = "`waits` (tests/it/module_backward.rs:_) has `of = \"enc.relu\"`, but no parameter has a name that begins with \
                    that of such a module: name a module with the path of its variables, or write `of = optional(\"enc.relu\")`";
    let found = message(&error("enc.relu").unwrap_err());
    assert!(found.contains(expected), "{found}");
}

#[test]
fn tables_profiles_and_tapes_see_the_moments() {
    let mut trainer = on_cpu()
        .hook(Moments::default())
        .on::<BeforeModuleBackward>(HookOptions::named("doubles").of("enc"), |cx| {
            let doubled = cx.output_grad() * 2.0;
            cx.set_output_grad(doubled)
        })
        .on::<AfterModuleGrads>(HookOptions::named("halves").of("enc.*"), |cx| {
            let _guard = tch::no_grad_guard();
            cx.module_grads()?.for_each(|(_, mut grad)| drop(grad.g_mul_scalar_(0.5)));
            Ok::<(), Error>(())
        })
        .profile(true)
        .run_folder(scratch("module_backward"))
        .tape(Tape::full())
        .build()
        .unwrap();
    trainer.fit(&mut rows(8), None).unwrap();
    let table = trainer.describe_hooks().to_string();
    for part in [
        "before_module_backward",
        "after_module_grads",
        "of enc.*",
        "gradient of a module's output",
        "gradients",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let profile = trainer.profile().unwrap();
    let calls = |name: &str| {
        profile
            .rows()
            .iter()
            .filter(|row| row.kind == SpanKind::Hook && row.name == name)
            .map(|row| row.calls)
            .sum::<u64>()
    };
    assert_eq!((calls("doubles"), calls("halves")), (2, 4));
}
