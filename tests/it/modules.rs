//! Hooks at named modules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::modules::{self, Name, Named, Patterns};
use trainer::prelude::*;

use crate::model::{message, rows};
use crate::support::{device, flat_parameters};

pub(crate) type Seen = Arc<Mutex<Vec<String>>>;
pub(crate) type Loss = fn(&Tensor, &Tensor) -> Tensor;
pub(crate) type Net = Supervised<nn::Sequential, Loss>;

/// Takes the lines recorded so far.
pub(crate) fn take(seen: &Seen) -> Vec<String> {
    std::mem::take(&mut *seen.lock().unwrap())
}

pub(crate) fn fill(vs: &nn::VarStore) {
    tch::set_num_threads(1);
    let _guard = tch::no_grad_guard();
    for (name, mut tensor) in vs.variables() {
        let values = Tensor::arange(tensor.numel() as i64, (Kind::Float, device()));
        tensor.copy_(&((values + name.len() as f64).sin() * 0.3).view_as(&tensor));
    }
}

/// Returns a network of `enc.fc1`, `enc.relu` and `enc.fc2` in `enc`, followed by `head`.
pub(crate) fn task(is_named: bool) -> Net {
    let vs = nn::VarStore::new(device());
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

pub(crate) fn builder() -> TrainerBuilder<Net> {
    Trainer::builder(task(true)).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

/// Records each call of each module.
pub(crate) struct Watch(pub(crate) Seen);

#[hook]
impl Watch {
    fn before_module_forward(&mut self, cx: &mut Cx<BeforeModuleForward>) {
        self.0.lock().unwrap().push(format!("before {} {:?}", cx.module(), cx.input().size()));
    }
    fn after_module_forward(&mut self, cx: &mut Cx<AfterModuleForward>) {
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
    // The same holds in each phase of a fit, and in a prediction after it.
    trainer.fit(&mut rows(8), Some(&mut rows(4))).unwrap();
    let calls = take(&seen);
    let count = |phase: &str| calls.iter().filter(|call| call.ends_with(phase)).count();
    assert_eq!((calls.len(), count("train"), count("valid")), (30, 10, 5));
    trainer.predict(&mut rows(4)).unwrap();
    assert_eq!(take(&seen), CALLS);
}

#[test]
fn results_are_bit_identical_with_and_without_names_and_hooks() {
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
        #[hook(of("enc.*", "head"))]
        fn around(&self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
            next.run(cx)
        }
    }
    assert_eq!(train(builder().hook(Around)), plain);
}

/// Records the modules that a pattern, a list and a field of the hook select.
struct Selected {
    seen: Seen,
    modules: Patterns,
}

#[hook]
impl Selected {
    #[hook(of = "enc.fc?")]
    fn pattern(&mut self, cx: &mut Cx<BeforeModuleForward>) {
        self.seen.lock().unwrap().push(format!("pattern {}", cx.module()));
    }
    #[hook(of("enc", optional("nowhere.*")))]
    fn list(&mut self, cx: &mut Cx<BeforeModuleForward>) {
        self.seen.lock().unwrap().push(format!("list {}", cx.module()));
    }
    #[hook(of = self.modules)]
    fn value(&mut self, cx: &mut Cx<BeforeModuleForward>) {
        self.seen.lock().unwrap().push(format!("value {}", cx.module()));
    }
}

#[test]
fn hooks_select_modules_by_name() {
    let seen = Seen::default();
    let closure = Arc::clone(&seen);
    let note = Arc::clone(&seen);
    let options = HookOptions::named("closure").of(Patterns::from("*c2").optional("nothing"));
    let mut trainer = builder()
        .hook(Selected { seen: note, modules: "h*".into() })
        .on::<BeforeModuleForward>(options, move |cx| {
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
    let hooks =
        json["moments"].as_array().unwrap().iter().flat_map(|moment| moment["hooks"].as_array().unwrap());
    let of: Vec<_> = hooks.map(|hook| hook["of"].to_string()).collect();
    assert_eq!(
        of,
        [r#"["enc.fc?"]"#, r#"["enc","optional(nowhere.*)"]"#, r#"["h*"]"#, r#"["*c2","optional(nothing)"]"#]
    );
}

#[test]
fn the_key_every_selects_all_calls_in_a_batch_or_none() {
    let seen = Seen::default();
    let note = Arc::clone(&seen);
    let mut trainer = builder()
        .on::<AfterModuleForward>(HookOptions::named("third").every(3), move |cx| {
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
        fn before_module_forward(&mut self, cx: &mut Cx<BeforeModuleForward>) {
            let doubled = cx.input() * 2.0;
            cx.set_input(doubled);
        }
        #[hook(of = "head")]
        fn after_module_forward(&mut self, cx: &mut Cx<AfterModuleForward>) -> Result<()> {
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

/// A task that calls one named module twice and again in the loss, and another one within itself.
/// If requested, it calls a module on another thread or catches its panic instead. Two of its
/// modules share a name.
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
        let vs = nn::VarStore::new(device());
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
            let x = x.shallow_clone();
            let shared = &mut self.shared;
            return Ok(std::thread::scope(|scope| scope.spawn(move || x.apply(shared)).join().unwrap()));
        }
        if self.catches_panic {
            let bad = Tensor::ones([1, 9], (Kind::Float, device()));
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
fn every_call_of_a_shared_module_is_observed_even_within_the_loss() {
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
fn a_method_around_nested_modules_is_an_error_with_advice() {
    struct Timer;
    #[hook]
    impl Timer {
        #[hook(of = "own.scaled")]
        fn time(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
            next.run(cx)
        }
    }
    let mut trainer = Trainer::builder(Own::new()).discover(Discover::None).hook(Timer).build().unwrap();
    let error = message(&trainer.predict(&mut rows(4)).unwrap_err());
    assert!(
        error.contains("already running and borrows its value") && error.contains("its modules are nested"),
        "{error}"
    );
}

#[test]
fn modules_that_a_hook_calls_are_not_observed() {
    struct Calls(Named<nn::Linear>, u32);
    #[hook]
    impl Calls {
        #[hook(of = "head")]
        fn after_module_forward(&mut self, cx: &mut Cx<AfterModuleForward>) -> Result<()> {
            self.1 += 1;
            let output = cx.output().apply(&self.0);
            cx.set_output(output)
        }
    }
    let vs = nn::VarStore::new(device());
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
        let outside = Seen::default();
        let inside = Seen::default();
        let inner = if is_inner_observed { builder().hook(Watch(Arc::clone(&inside))) } else { builder() };
        let vs = nn::VarStore::new(device());
        let own = nn::linear(vs.root(), 4, 3, Default::default()).named("outer");
        let task = Outer { own, inner: inner.build().unwrap(), vs };
        let builder = Trainer::builder(task).discover(Discover::None).hook(Watch(Arc::clone(&outside)));
        builder.build().unwrap().predict(&mut rows(4)).unwrap();
        assert_eq!(take(&outside), ["before outer [4, 4]", "after outer [4, 3] predict"]);
        assert_eq!(take(&inside).len(), if is_inner_observed { 10 } else { 0 });
    }
}

#[test]
fn layers_of_a_sequence_are_named_after_their_indices() {
    let seen = Seen::default();
    let vs = nn::VarStore::new(device());
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
        .on::<AfterModuleForward>("look", move |cx| note.lock().unwrap().push(cx.module().to_owned()))
        .build()
        .unwrap();
    let (x, y) = rows(4).batches(0, 0).unwrap().next().unwrap().unwrap();
    trainer.fit(&mut from_fn(|_| [(x.shallow_clone(), y.shallow_clone())]), None).unwrap();
    assert_eq!(take(&seen), ["net.0", "net.1", "net.2", "net.3", "net.out.0", "net.out", "net"]);
}

#[test]
fn the_summary_lists_shapes_parameters_and_operations() {
    let task = task(true);
    let input = Tensor::zeros([16, 4], (Kind::Float, device()));
    let summary = modules::summary(task.vars(), task.net(), &input).unwrap();
    insta::assert_snapshot!(summary);
    assert_eq!(summary.get("enc").unwrap().parameters, 4 * 8 + 8 + 8 * 8 + 8);

    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let grouped = nn::ConvConfig { stride: 2, padding: 1, groups: 2, bias: false, ..Default::default() };
    let transposed = nn::ConvTransposeConfig { stride: 2, ..Default::default() };
    let net = modules::seq_t("net")
        .add_as("conv", nn::conv2d(&root / "conv", 4, 8, 3, grouped))
        .add_as("bn", nn::batch_norm2d(&root / "bn", 8, Default::default()))
        .add_as("up", nn::conv_transpose2d(&root / "up", 8, 2, 2, transposed));
    let input = Tensor::zeros([3, 4, 8, 8], (Kind::Float, device()));
    let summary = modules::summary(&vs, &net, &input).unwrap();
    let flops = |name: &str| summary.get(name).unwrap().flops;
    assert_eq!(flops("net.conv"), 2 * (3 * 8 * 4 * 4) * (2 * 3 * 3));
    assert_eq!(flops("net.up"), 2 * (3 * 8 * 4 * 4) * (2 * 2 * 2));
    assert_eq!((flops("net.bn"), flops("net")), (0, summary.flops()));

    let error = modules::summary(&vs, &nn::func(Tensor::relu), &input).unwrap_err().to_string();
    assert!(error.contains("the forward pass called no named module"), "{error}");
}

#[test]
fn equal_blocks_of_a_summary_are_one_line_and_it_fits_the_terminal() {
    let vs = nn::VarStore::new(device());
    let path = vs.root() / "a_vision_transformer";
    let linear = |path: nn::Path<'_>, inputs, outputs| nn::linear(path, inputs, outputs, Default::default());
    let mut net = modules::seq(&path);
    let hidden = [64, 64, 64, 64, 128, 64, 64];
    for (nth, hidden) in hidden.into_iter().enumerate() {
        let path = &path / nth;
        let block = modules::seq(&path).add(linear(&path / 0, 64, hidden)).add(linear(&path / 1, hidden, 64));
        net = net.add(block);
    }
    let input = Tensor::zeros([64, 197, 64], (Kind::Float, device()));
    let summary = modules::summary(&vs, &net, &input).unwrap();
    assert_eq!(summary.rows().len(), 1 + 3 * hidden.len());
    for width in [60, 80, 200] {
        let text = summary.terminal(width);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        insta::assert_snapshot!(format!("summary_{width}"), text);
    }
    assert!(summary.terminal(20).lines().all(|line| line.chars().count() <= 20));
    assert_eq!(summary.to_string(), summary.terminal(200));
}

#[test]
fn the_summary_in_the_guide_matches_its_model() {
    #[derive(Debug)]
    struct Block(Name);
    impl nn::Module for Block {
        fn forward(&self, xs: &Tensor) -> Tensor {
            self.0.run(xs, Tensor::relu)
        }
    }
    let guide = include_str!("../../trainer/guide/modules.md");
    let shown = guide.split_once("```text\n").unwrap().1.split_once("\n```").unwrap().0;
    let vs = nn::VarStore::new(device());
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
    let summary = modules::summary(&vs, &net, &Tensor::zeros([4, 8], (Kind::Float, device()))).unwrap();
    assert_eq!(summary.to_string(), shown, "actual on the left, documented on the right");
}

/// Returns the operations of a function of a `[3, 4, 6]` tensor, and of the module that calls it.
fn flops_of(f: impl Fn(&Tensor) -> Tensor + Send + 'static) -> u64 {
    let vs = nn::VarStore::new(device());
    let input = Tensor::ones([3, 4, 6], (Kind::Float, device()));
    let summary = modules::summary(&vs, &nn::func(f).named("f"), &input).unwrap();
    assert_eq!(summary.get("f").unwrap().flops, summary.flops());
    summary.flops()
}

fn ones(shape: &[i64]) -> Tensor {
    Tensor::ones(shape, (Kind::Float, device()))
}

#[test]
fn the_summary_counts_each_multiply_add_of_each_product_once() {
    let product = 2 * 3 * 4 * 6 * 5;
    assert_eq!(flops_of(|x| x.matmul(&ones(&[6, 5]))), product);
    assert_eq!(flops_of(|x| x.matmul(&ones(&[3, 6, 5]))), product);
    assert_eq!(flops_of(|x| x.bmm(&ones(&[3, 6, 5]))), product);
    assert_eq!(flops_of(|x| x.linear(&ones(&[5, 6]), Some(&ones(&[5])))), product);
    assert_eq!(flops_of(|x| x.view([12, 6]).mm(&ones(&[6, 5]))), product);
    assert_eq!(flops_of(|x| ones(&[5]).addmm(&x.view([12, 6]), &ones(&[6, 5]))), product);
    assert_eq!(flops_of(|x| ones(&[4, 5]).baddbmm(x, &ones(&[3, 6, 5]), 1.0, 1.0)), product);
    assert_eq!(flops_of(|x| ones(&[4, 5]).addbmm(x, &ones(&[3, 6, 5]))), product);
    assert_eq!(flops_of(|x| Tensor::einsum("bij,jk->bik", &[x, &ones(&[6, 5])], None::<i64>)), product);
    assert_eq!(flops_of(|x| x.view([12, 6]).mv(&ones(&[6]))), 2 * 12 * 6);
    assert_eq!(flops_of(|x| ones(&[12]).addmv(&x.view([12, 6]), &ones(&[6]))), 2 * 12 * 6);
    assert_eq!(flops_of(|x| x.view([72]).dot(&ones(&[72]))), 2 * 72);
    // Channels, kernel width, output width.
    assert_eq!(flops_of(|x| x.conv1d(&ones(&[8, 4, 3]), None::<Tensor>, 1, 1, 1, 1)), 2 * 3 * 8 * 6 * 4 * 3);
    assert_eq!(flops_of(|x| x.conv1d(&ones(&[8, 2, 3]), None::<Tensor>, 2, 1, 1, 2)), 2 * 3 * 8 * 3 * 2 * 3);
    let transposed = |x: &Tensor| x.conv_transpose1d(&ones(&[4, 8, 3]), None::<Tensor>, 1, 0, 0, 1, 1);
    assert_eq!(flops_of(transposed), 2 * 3 * 4 * 6 * 8 * 3);
    // Keys and values of width 6 and 2, and five of them.
    let attention = |is_causal: bool| {
        move |x: &Tensor| {
            let keys = ones(&[3, 5, 6]);
            let values = ones(&[3, 5, 2]);
            Tensor::scaled_dot_product_attention(
                x,
                &keys,
                &values,
                None::<Tensor>,
                0.0,
                is_causal,
                None,
                false,
            )
        }
    };
    assert_eq!(flops_of(attention(false)), 2 * 3 * 4 * 5 * (6 + 2));
    assert_eq!(flops_of(attention(true)), 2 * 3 * 4 * 5 * (6 + 2));
    assert_eq!(flops_of(|x| (x * 2.0 + 1.0).softmax(-1, Kind::Float)), 0);
}

/// A language model with one block of attention, whose head has the weight of the embedding.
#[derive(Debug)]
struct TiedGpt {
    embedding: nn::Embedding,
    qkv: modules::Named<nn::Linear>,
    proj: modules::Named<nn::Linear>,
    is_fused: bool,
    name: Name,
}

const BATCH: i64 = 3;
const LEN: i64 = 5;
const WIDTH: i64 = 8;
const HEADS: i64 = 2;
const VOCABULARY: i64 = 11;

impl nn::Module for TiedGpt {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        let x = tokens.apply(&self.embedding);
        let mixed = self.name.run(&x, |x| {
            let heads =
                x.apply(&self.qkv).view([BATCH, LEN, 3, HEADS, WIDTH / HEADS]).permute([2, 0, 3, 1, 4]);
            let [q, k, v] = [0, 1, 2].map(|nth| heads.get(nth));
            let mixed = if self.is_fused {
                Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, true, None, false)
            } else {
                q.matmul(&k.transpose(-2, -1)).softmax(-1, Kind::Float).matmul(&v)
            };
            mixed.transpose(1, 2).reshape([BATCH, LEN, WIDTH]).apply(&self.proj)
        });
        (x + mixed).matmul(&self.embedding.ws.tr())
    }
}

#[test]
fn the_summary_counts_attention_and_a_tied_head() {
    for is_fused in [false, true] {
        let vs = nn::VarStore::new(device());
        let root = vs.root();
        let linear = |name: &str, outputs: i64| {
            nn::linear(&root / name, WIDTH, outputs, Default::default()).named(&root / name)
        };
        let net = TiedGpt {
            embedding: nn::embedding(&root / "embedding", VOCABULARY, WIDTH, Default::default()),
            qkv: linear("qkv", 3 * WIDTH),
            proj: linear("proj", WIDTH),
            is_fused,
            name: "attention".into(),
        };
        let tokens = Tensor::zeros([BATCH, LEN], (Kind::Int64, device()));
        let summary = modules::summary(&vs, &net, &tokens).unwrap();
        let rows = BATCH * LEN;
        let products = 2 * (2 * rows * LEN * WIDTH);
        let layers = 2 * rows * WIDTH * (3 * WIDTH) + 2 * rows * WIDTH * WIDTH;
        let head = 2 * rows * WIDTH * VOCABULARY;
        assert_eq!(summary.get("attention").unwrap().flops as i64, products + layers);
        assert_eq!(summary.flops() as i64, products + layers + head);
    }
}

#[test]
fn a_sequence_within_a_sequence_has_one_name() {
    let vs = nn::VarStore::new(device());
    let root = vs.root() / "net";
    let linear = |path: nn::Path<'_>| nn::linear(path, 4, 4, Default::default());
    let inner = || modules::seq(&root / 0).add(linear(&root / 0 / 0)).add_fn(Tensor::relu);
    let inner_t = || modules::seq_t(&root / 0).add(linear(&root / 0 / 0)).add_fn(Tensor::relu);
    let expected = ["net.0.0", "net.0.1", "net.0", "net.1", "net"];
    let sequences: Vec<(&str, Box<dyn nn::ModuleT>)> = vec![
        ("add", Box::new(modules::seq_t(&root).add(inner()).add_fn(Tensor::relu))),
        ("add of a module for training", Box::new(modules::seq_t(&root).add(inner_t()).add_fn(Tensor::relu))),
        ("in a sequence of modules", Box::new(modules::seq(&root).add(inner()).add_fn(Tensor::relu))),
        ("add_as", Box::new(modules::seq_t(&root).add_as("0", inner()).add_fn(Tensor::relu))),
        (
            "add of a named layer",
            Box::new(modules::seq_t(&root).add(inner().named(&root / 0)).add_fn(Tensor::relu)),
        ),
        ("named", Box::new(modules::seq_t(&root).add_fn(Tensor::relu).named_t("net").named_t("net"))),
        (
            "built by name",
            Box::new(modules::named_t(&root / "x", |path| modules::seq_t(path).add_fn(Tensor::relu))),
        ),
        (
            "another name",
            Box::new(modules::seq_t(&root).add(linear(&root / 7).named("own")).add_fn(Tensor::relu)),
        ),
    ];
    for (what, net) in sequences {
        let calls = called(net);
        let expected = match what {
            "named" => vec!["net.0", "net"],
            "built by name" => vec!["net.x.0", "net.x"],
            "another name" => vec!["own", "net.1", "net"],
            _ => expected.to_vec(),
        };
        assert_eq!(calls, expected, "{what}");
    }
}

/// Returns the names of the modules at which hooks run in one forward pass, in order.
fn called(net: Box<dyn nn::ModuleT>) -> Vec<String> {
    #[derive(Debug)]
    struct Boxed(Box<dyn nn::ModuleT>);
    impl nn::ModuleT for Boxed {
        fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
            self.0.forward_t(xs, train)
        }
    }
    let seen = Seen::default();
    let note = Arc::clone(&seen);
    let own = nn::VarStore::new(device());
    let task = Supervised::new(own, Boxed(net), |out: &Tensor, _: &Tensor| out.sum(Kind::Float));
    let mut trainer = Trainer::builder(task)
        .discover(Discover::None)
        .on::<AfterModuleForward>("look", move |cx| note.lock().unwrap().push(cx.module().to_owned()))
        .build()
        .unwrap();
    trainer.predict(&mut rows(4)).unwrap();
    take(&seen)
}
