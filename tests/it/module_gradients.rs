//! Gradients of the outputs of named modules, and of single tensors.

use std::sync::{Arc, Mutex, OnceLock, mpsc};

use trainer::prelude::*;
use trainer::{GradHook, OnGrad};

use crate::model::{message, rows};
use crate::modules::{Seen, builder, take, task};
use crate::support::device;

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
fn the_gradient_of_an_input_excludes_other_uses_of_the_tensor() {
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let linear = |name: &str, inputs: i64, outputs: i64| {
        nn::linear(&root / name, inputs, outputs, Default::default()).named(&root / name)
    };
    let first = linear("first", 4, 6);
    let branch = linear("branch", 6, 6);
    let head = linear("head", 6, 3);
    let [of_branch, of_head] = [&branch, &head].map(|layer| layer.ws.copy());
    // A residual connection: the hidden tensor is used by the branch and outside of it.
    let net = nn::func_t(move |x, _| {
        let hidden = x.apply(&first);
        (&hidden + hidden.apply(&branch)).apply(&head)
    });
    let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    type Found = Vec<(String, Tensor, Option<Tensor>)>;
    let found: Arc<Mutex<Found>> = Arc::default();
    let note = Arc::clone(&found);
    let mut trainer = Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .on::<AfterModuleBackward>("note", move |cx| {
            let input = cx.input_grad().map(Tensor::copy);
            note.lock().unwrap().push((cx.module().to_owned(), cx.output_grad().copy(), input));
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(4), None).unwrap();
    let found = std::mem::take(&mut *found.lock().unwrap());
    let of = |name: &str| found.iter().find(|(module, ..)| module == name).unwrap();
    let [(_, head_output, head_input), (_, branch_output, branch_input), (_, hidden, first_input)] =
        ["head", "branch", "first"].map(of);
    let is_close = |one: &Tensor, other: &Tensor| (one - other).abs().max().double_value(&[]) < 1e-6;
    assert!(is_close(head_input.as_ref().unwrap(), &head_output.matmul(&of_head)));
    let expected = branch_output.matmul(&of_branch);
    assert!(is_close(branch_input.as_ref().unwrap(), &expected));
    // The tensor that the branch receives has both gradients.
    assert!(is_close(hidden, &(&expected + branch_output)) && !is_close(hidden, &expected));
    assert!(first_input.is_none(), "the batch does not require a gradient");
}

#[test]
fn observing_gradients_of_inputs_does_not_change_training() {
    let weights = |is_observed: bool| {
        let mut builder = builder().epochs(2);
        if is_observed {
            builder = builder.on::<AfterModuleBackward>("look", |cx| drop(cx.input_grad().map(Tensor::copy)));
        }
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut rows(16), None).unwrap();
        let vars = trainer.vars();
        vars.iter().map(|var| (var.name.clone(), var.tensor.copy())).collect::<Vec<_>>()
    };
    assert_eq!(weights(true), weights(false));
}

#[test]
fn after_module_backward_fires_in_a_replaced_backward_pass() {
    struct Own;
    #[hook]
    impl Own {
        fn own(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
            next.replace(cx, |cx| cx.backward(&cx.scaled_loss()))
        }
    }
    let seen = Seen::default();
    let note = Seen::default();
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
fn on_grad_closures_are_dropped_with_the_graph() {
    let mut trainer = builder().epochs(300).on::<AfterModuleBackward>("look", |_| {}).build().unwrap();
    // Many passes with a hook at each module, then one without gradients.
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
        let weight = Tensor::ones([2], (Kind::Float, device())).set_requires_grad(true);
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
    handle.remove();
    let mut count = 0;
    hidden
        .on_grad(move |grad| {
            count += 1;
            (count > 1).then(|| grad * 0.0)
        })
        .unwrap();
    hidden.sum(Kind::Float).backward();
    assert_eq!(w.grad(), Tensor::from_slice(&[2.0f32; 3]));

    // On a leaf, the closure receives the gradient before it is accumulated.
    let w = weight();
    w.on_grad(|grad| grad + 1.0).unwrap();
    w.sum(Kind::Float).backward();
    assert_eq!(w.grad(), Tensor::from_slice(&[2.0f32; 3]));
}

#[test]
fn misuse_of_on_grad_is_an_error() {
    let plain = Tensor::ones([1], (Kind::Float, device()));
    let error = plain.on_grad(|_| {}).unwrap_err().to_string();
    assert!(error.contains("the tensor requires no gradient"), "{error}");
    assert!(Tensor::new().on_grad(|_| {}).is_err());
    let fails = |closure: fn(&Tensor) -> Tensor| {
        let hidden = Tensor::ones([2], (Kind::Float, device())).set_requires_grad(true) * 2.0;
        hidden.on_grad(closure).unwrap();
        hidden.sum(Kind::Float).f_backward().unwrap_err().to_string()
    };
    let error = fails(|_| panic!("in a closure"));
    assert!(error.contains("a closure of `on_grad` panicked: in a closure"), "{error}");
    let error = fails(|_| Tensor::ones([3], (Kind::Float, device())));
    assert!(error.contains("has changed the size of value"), "{error}");
}

/// A value whose destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

#[test]
fn destructors_that_panic_in_on_grad_do_not_abort_the_process() {
    let hidden = || Tensor::ones([2], (Kind::Float, device())).set_requires_grad(true) * 2.0;
    let panics = hidden();
    panics.on_grad(|_| std::panic::panic_any(Bomb)).unwrap();
    let error = panics.sum(Kind::Float).f_backward().unwrap_err().to_string();
    assert!(error.contains("a closure of `on_grad` panicked: no message"), "{error}");

    let with_graph = Bomb;
    let removed = Bomb;
    let refused = Bomb;
    let tensor = hidden();
    tensor.on_grad(move |_| _ = &with_graph).unwrap();
    tensor.sum(Kind::Float).backward();
    drop(tensor);
    hidden().on_grad(move |_| _ = &removed).unwrap().remove();
    assert!(Tensor::new().on_grad(move |_| _ = &refused).is_err());
}

/// Values that a closure owns, with a count of how often they were dropped.
struct Owned {
    numbers: Vec<u64>,
    drops: Arc<Mutex<u32>>,
}

impl Owned {
    fn new(drops: &Arc<Mutex<u32>>) -> Self {
        Owned { numbers: (0..1000).collect(), drops: Arc::clone(drops) }
    }

    fn check(&self) {
        // Reuses memory that was freed too early.
        let other: Vec<u64> = std::hint::black_box((0..1000).map(|nth| nth * 7).collect());
        assert_eq!(self.numbers.iter().sum::<u64>(), 499_500, "{}", other.len());
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        *self.drops.lock().unwrap() += 1;
    }
}

/// A handle that a closure can reach.
type Reached = Arc<OnceLock<GradHook>>;

/// Returns a leaf that requires a gradient, and a tensor that depends on it, which is the leaf
/// itself if `is_leaf` is set.
fn leaf_and(is_leaf: bool) -> (Tensor, Tensor) {
    let leaf = Tensor::ones([2], (Kind::Float, device())).set_requires_grad(true);
    let tensor = if is_leaf { leaf.shallow_clone() } else { &leaf * 1.0 };
    (leaf, tensor)
}

fn backward(tensor: &Tensor) -> Result<(), tch::TchError> {
    Tensor::f_run_backward(&[tensor.sum(Kind::Float)], &[tensor], true, false).map(drop)
}

#[test]
fn a_closure_that_removes_itself_lives_until_it_returns() {
    for is_leaf in [true, false] {
        let (_leaf, tensor) = leaf_and(is_leaf);
        let drops = Arc::new(Mutex::new(0));
        let owned = Owned::new(&drops);
        let handle = Reached::default();
        let own = Arc::clone(&handle);
        let calls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&calls);
        let first = tensor.on_grad(move |grad| {
            own.get().unwrap().remove();
            own.get().unwrap().remove(); // twice
            owned.check();
            assert_eq!(*owned.drops.lock().unwrap(), 0);
            *counted.lock().unwrap() += 1;
            grad * 5.0
        });
        handle.set(first.unwrap()).unwrap();
        let loss = (&tensor * 2.0).sum(Kind::Float);
        let first = Tensor::run_backward(&[&loss], &[&tensor], true, false).remove(0);
        assert_eq!(first, Tensor::from_slice(&[10.0f32; 2]));
        assert_eq!(*drops.lock().unwrap(), 1, "the closure is dropped when its last call ends");
        let second = Tensor::run_backward(&[&loss], &[&tensor], false, false).remove(0);
        assert_eq!(second, Tensor::from_slice(&[2.0f32; 2]));
        handle.get().unwrap().remove();
        assert_eq!((*calls.lock().unwrap(), *drops.lock().unwrap()), (1, 1));
    }
}

#[test]
fn a_closure_can_be_removed_by_another_thread_while_it_runs() {
    for is_leaf in [true, false] {
        for _ in 0..20 {
            let (_leaf, tensor) = leaf_and(is_leaf);
            let drops = Arc::new(Mutex::new(0));
            let owned = Owned::new(&drops);
            let (runs, is_running) = mpsc::channel();
            let (removed, is_removed) = mpsc::channel();
            let handle = tensor
                .on_grad(move |_| {
                    runs.send(()).unwrap();
                    is_removed.recv().unwrap();
                    owned.check();
                })
                .unwrap();
            let remover = std::thread::spawn(move || {
                is_running.recv().unwrap();
                handle.remove();
                removed.send(()).unwrap();
            });
            backward(&tensor).unwrap();
            remover.join().unwrap();
            assert_eq!(*drops.lock().unwrap(), 1);
            backward(&tensor).unwrap();
        }
    }
}

#[test]
fn handles_outlive_tensors_and_closures_outlive_handles() {
    for is_leaf in [true, false] {
        let drops = Arc::new(Mutex::new(0));
        let (leaf, tensor) = leaf_and(is_leaf);
        let owned = Owned::new(&drops);
        drop(tensor.on_grad(move |_| owned.check()).unwrap());
        backward(&tensor).unwrap();
        let owned = Owned::new(&drops);
        let handle = tensor.on_grad(move |_| owned.check()).unwrap();
        assert_eq!(*drops.lock().unwrap(), 0);
        drop((leaf, tensor));
        assert_eq!(*drops.lock().unwrap(), 2, "a handle keeps neither the tensor nor the closure alive");
        handle.remove();

        // A closure may drop the last handle of its tensor, remove other closures, and add some.
        let (leaf, tensor) = leaf_and(is_leaf);
        let kept = Arc::new(Mutex::new(Some((leaf, tensor.shallow_clone()))));
        let of_closure = Arc::clone(&kept);
        let owned = Owned::new(&drops);
        let later = Reached::default();
        let later_of_closure = Arc::clone(&later);
        tensor
            .on_grad(move |_| {
                later_of_closure.get().unwrap().remove();
                let (_, tensor) = of_closure.lock().unwrap().take().unwrap();
                for _ in 0..100 {
                    tensor.on_grad(|_| {}).unwrap();
                }
                drop(tensor);
                owned.check();
            })
            .unwrap();
        later.set(tensor.on_grad(|_| panic!("it was removed")).unwrap()).unwrap();
        let loss = tensor.sum(Kind::Float);
        drop(tensor);
        loss.f_backward().unwrap();
        drop(loss);
        assert_eq!(*drops.lock().unwrap(), 3);
    }
}

#[test]
fn a_closure_that_panics_can_be_called_and_removed_afterwards() {
    let (_leaf, tensor) = leaf_and(false);
    let drops = Arc::new(Mutex::new(0));
    let owned = Owned::new(&drops);
    let handle = Reached::default();
    let own = Arc::clone(&handle);
    let mut calls = 0;
    let hook = tensor.on_grad(move |_| {
        calls += 1;
        if calls == 3 {
            own.get().unwrap().remove();
        }
        owned.check();
        panic!("call {calls}");
    });
    handle.set(hook.unwrap()).unwrap();
    for call in 1..=3 {
        let error = backward(&tensor).unwrap_err().to_string();
        assert!(error.contains(&format!("panicked: call {call}")), "{error}");
    }
    assert_eq!(*drops.lock().unwrap(), 1);
    backward(&tensor).unwrap();

    // The closure removes itself, panics, and owns a value whose destructor panics.
    let (_leaf, tensor) = leaf_and(false);
    let handle = Reached::default();
    let own = Arc::clone(&handle);
    let bomb = Bomb;
    let hook = tensor.on_grad(move |_| {
        let _bomb = &bomb;
        own.get().unwrap().remove();
        std::panic::panic_any(Bomb);
    });
    handle.set(hook.unwrap()).unwrap();
    backward(&tensor).unwrap_err();
    backward(&tensor).unwrap();
}
