//! Gradients of the outputs of named modules, and of single tensors.

use std::sync::{Arc, Mutex};

use trainer::prelude::*;

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
    hidden().on_grad(move |_| _ = &removed).unwrap().remove().unwrap();
    assert!(Tensor::new().on_grad(move |_| _ = &refused).is_err());
}
