//! `hooks::Lora`: low-rank adapters at modules.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use trainer::TrainerBuilder;
use trainer::checkpoint::LoadWeights;
use trainer::finders::LearningRateFinder;
use trainer::hooks::{Amp, Checkpoint, Ema, Freeze, Lora};
use trainer::modules::{Name, Patterns};
use trainer::optim::{Group, Sharded};
use trainer::prelude::*;

use crate::support::{cancelled_at, device, distance, exact_state, scratch};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// GPT-2's linear layer, whose weight is `[in, out]`.
#[derive(Debug)]
struct Conv1D {
    name: Name,
    weight: Tensor,
    bias: Tensor,
}

impl Conv1D {
    fn new(path: nn::Path<'_>, inputs: i64, outputs: i64) -> Self {
        let weight = path.randn("weight", &[inputs, outputs], 0.0, 0.5);
        let bias = path.randn("bias", &[outputs], 0.0, 0.1);
        Conv1D { name: path.into(), weight, bias }
    }
}

impl nn::Module for Conv1D {
    fn forward(&self, xs: &Tensor) -> Tensor {
        self.name.run(xs, |xs| xs.matmul(&self.weight) + &self.bias)
    }
}

type Loss = fn(&Tensor, &Tensor) -> Tensor;
type Net = Supervised<nn::Sequential, Loss>;

/// `lm.0.q_proj`, `[6, 4]`; `lm.0.norm`; `lm.0.c_attn`, transposed, `[6, 5]`; `lm.head`, `[3, 5]`.
fn net(root: &nn::Path<'_>) -> nn::Sequential {
    let path = root / "lm" / 0;
    let linear = |path: nn::Path<'_>, inputs, outputs| nn::linear(&path, inputs, outputs, Default::default());
    nn::seq()
        .add(linear(&path / "q_proj", 4, 6).named(&path / "q_proj"))
        .add_fn(Tensor::tanh)
        .add(nn::layer_norm(&path / "norm", vec![6], Default::default()).named(&path / "norm"))
        .add(Conv1D::new(&path / "c_attn", 6, 5))
        .add(nn::func(Tensor::tanh).named(&path / "q_act"))
        .add(linear(root / "lm" / "head", 5, 3).named(root / "lm" / "head"))
}

/// Returns the task with weights that are the same in every call.
fn task() -> Net {
    let vs = nn::VarStore::new(device());
    let net = net(&vs.root());
    // Other tests draw from libtorch's generator at the same time.
    for (nth, (_, mut value)) in
        vs.variables().into_iter().collect::<BTreeMap<_, _>>().into_iter().enumerate()
    {
        let values = (Tensor::arange(value.numel() as i64, FLOAT) * 1.7 + nth as f64).sin() * 0.4;
        tch::no_grad(|| value.copy_(&values.view_as(&value)));
    }
    Supervised::new(vs, net, |logits, labels| {
        logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0)
    })
}

fn data() -> InMemory<(Tensor, Tensor)> {
    let inputs = (Tensor::arange(26 * 4, FLOAT) * 0.37).sin().view([26, 4]);
    let labels = Tensor::arange(26, (Kind::Int64, device())).remainder(3);
    InMemory::new((inputs, labels)).unwrap().batch_size(8)
}

fn lora() -> Lora {
    Lora::new(["*.q_proj", "*.c_attn"], 2).alpha(8.0).transposed("*.c_attn").trainable("lm.head.*")
}

fn builder(lora: Lora) -> TrainerBuilder<Net> {
    Trainer::builder(task()).discover(Discover::None).seed(11).optimizer(AdamW::new(0.05)).hook(lora)
}

fn predictions(trainer: &mut Trainer<Net>) -> Tensor {
    Tensor::cat(&trainer.predict(&mut data()).unwrap(), 0)
}

fn values(trainer: &Trainer<impl Task>) -> BTreeMap<String, Tensor> {
    trainer.vars().iter().map(|var| (var.name.clone(), var.tensor.detach().copy())).collect()
}

#[test]
fn two_steps_equal_a_computation_by_hand() {
    let mut trainer = builder(lora()).optimizer(Sgd::new(0.3)).max_steps(2).build().unwrap();
    let mut own: BTreeMap<String, Tensor> = values(&trainer);
    let trained = |name: &str| name.contains("lora_") || name.starts_with("lm.head");
    for (inputs, labels) in data().batches(0, 0).unwrap().take(2).map(Result::unwrap) {
        for (name, value) in &mut own {
            *value = value.detach().set_requires_grad(trained(name));
        }
        let adapted = |name: &str, xs: &Tensor, is_transposed: bool| {
            let weight = &own[&format!("{name}.weight")];
            let weight = if is_transposed { weight.tr() } else { weight.shallow_clone() };
            let update = xs.matmul(&own[&format!("{name}.lora_A.weight")].tr());
            let update = update.matmul(&own[&format!("{name}.lora_B.weight")].tr()) * 4.0; // 8 / 2
            xs.matmul(&weight.tr()) + &own[&format!("{name}.bias")] + update
        };
        let xs = adapted("lm.0.q_proj", &inputs, false).tanh();
        let norm = ["weight", "bias"].map(|name| Some(&own[&format!("lm.0.norm.{name}")]));
        let xs = xs.layer_norm([6], norm[0], norm[1], 1e-5, true);
        let xs = adapted("lm.0.c_attn", &xs, true).tanh();
        let logits = xs.matmul(&own["lm.head.weight"].tr()) + &own["lm.head.bias"];
        logits.cross_entropy_for_logits(&labels).backward();
        let _no_grad = tch::no_grad_guard();
        for (name, value) in &mut own {
            if trained(name) {
                *value = value.detach() - value.grad() * 0.3;
            }
        }
    }
    let before = values(&trainer);
    trainer.fit(&mut data(), None).unwrap();
    for (name, value) in values(&trainer) {
        assert!(distance(&value, &own[&name]) < 1e-6, "{name}");
        assert_eq!(value.equal(&before[&name]), !trained(&name), "{name}");
    }
}

#[test]
fn only_the_adapters_and_the_head_are_trained_and_have_state() {
    let mut trainer = builder(lora()).epochs(1).build().unwrap();
    let adapters = [
        "lm.0.c_attn.lora_A.weight",
        "lm.0.c_attn.lora_B.weight",
        "lm.0.q_proj.lora_A.weight",
        "lm.0.q_proj.lora_B.weight",
    ];
    let shapes = adapters.map(|name| trainer.vars().get(name).unwrap().size());
    assert_eq!(shapes, [[2, 6], [5, 2], [2, 4], [6, 2]]);
    let expected: Vec<&str> = adapters.into_iter().chain(["lm.head.bias", "lm.head.weight"]).collect();
    trainer.fit(&mut data(), None).unwrap();
    let names = |trainer: &Trainer<Net>| -> Vec<String> {
        let trained = trainer.vars().parameters().filter(|var| var.tensor.requires_grad());
        trained.map(|var| var.name.clone()).collect()
    };
    assert_eq!(names(&trainer), expected);
    let optimizer = trainer.optimizer().unwrap();
    let groups = optimizer.groups().iter().map(|group| (group.is_frozen(), group.names().count()));
    assert_eq!(groups.collect::<Vec<_>>(), [(true, 6), (false, 6)]);
    let state: Vec<String> = optimizer.state().into_iter().map(|(name, _)| name).collect();
    assert_eq!(state.len(), 3 * expected.len(), "{state:?}");
    assert!(state.iter().all(|name| expected.iter().any(|own| name.ends_with(own))), "{state:?}");

    let text = trainer.describe_hooks().full().to_string();
    assert!(text.contains("Lora") && text.contains("after_module_forward"), "{text}");
}

#[test]
fn optimizer_group_patterns_match_the_adapters() {
    // The rates of LoRA+.
    let optimizer = AdamW::new(1e-3).group("*.lora_B.weight", Group::new().lr(1e-2));
    let trainer = builder(lora()).optimizer(optimizer).build().unwrap();
    let groups = trainer.optimizer().unwrap().groups();
    let lrs = groups.iter().map(|group| (group.pattern().is_some(), group.lr, group.names().count()));
    assert_eq!(lrs.collect::<Vec<_>>(), [(false, 1e-3, 6), (false, 1e-3, 4), (true, 1e-2, 2)]);
}

#[test]
fn initial_values_depend_on_the_seed_and_the_name_alone() {
    let a = |lora: Lora, seed| {
        let trainer = builder(lora).seed(seed).build().unwrap();
        trainer.vars().get("lm.0.q_proj.lora_A.weight").unwrap().detach().copy()
    };
    let one = a(Lora::new("*.q_proj", 4), 1);
    assert!(one.equal(&a(Lora::new(["*.q_proj", "*.c_attn"], 4).transposed("*.c_attn"), 1)));
    assert!(!one.equal(&a(Lora::new("*.q_proj", 4), 2)));
    let bound = 0.5; // 1 / √4
    assert!(one.abs().max().double_value(&[]) < bound && one.std(true).double_value(&[]) > 0.15);
}

#[test]
fn outputs_do_not_change_until_b_is_trained() {
    let mut plain = Trainer::builder(task()).discover(Discover::None).build().unwrap();
    let mut trainer = builder(lora()).epochs(1).build().unwrap();
    let before = predictions(&mut trainer);
    assert!(before.equal(&predictions(&mut plain)));
    trainer.fit(&mut data(), None).unwrap();
    assert!(distance(&predictions(&mut trainer), &before) > 0.1);
}

/// Returns the mistakes of a trainer with these hooks.
fn mistake(set: impl FnOnce(TrainerBuilder<Net>) -> TrainerBuilder<Net>) -> String {
    let builder = Trainer::builder(task()).discover(Discover::None).optimizer(Sgd::new(0.1));
    set(builder).build().unwrap_err().to_string()
}

#[test]
fn invalid_adapters_are_refused_when_the_trainer_is_built() {
    let cases: [(Lora, &str); 13] = [
        (Lora::new("*.q_proj", 0), "`Lora::new(…, 0)`: expected a rank of at least 1"),
        (
            Lora::new("*.q_proj", 5),
            "the rank 5 is larger than a dimension of the weight of `lm.0.q_proj`, which is [6, 4]: expected at most 4",
        ),
        (Lora::new("*.q_proj", 2).alpha(f64::NAN), "`.alpha(NaN)`: expected a finite number above 0"),
        (Lora::new("*.q_proj", 2).alpha(0.0), "`.alpha(0.0)`: expected a finite number above 0"),
        (Lora::new("*.q_proj", 2).dropout(1.0), "`.dropout(1.0)`: expected at least 0.0 and below 1.0"),
        (Lora::new("*.qproj_of_lora", 2), "has `of = \"*.qproj_of_lora\"`, but no module has such a name"),
        (Lora::new(["*.q_proj", ""], 2), "selects modules by an empty name or list"),
        (
            Lora::new("lm.0.norm", 2),
            "`lm.0.norm` has a weight of dtype Float and shape [6]: expected a linear module, whose weight is `[out, in]`",
        ),
        (
            Lora::new("lora_test_activation", 2),
            "`lora_test_activation` matches no module of the task with a weight: a module's name must be the path",
        ),
        (
            Lora::new("*.q_proj", 2).transposed("*.c_attn"),
            "`.transposed(\"*.c_attn\")` matches no module that it adapts",
        ),
        (
            Lora::new("*.q_proj", 2).trainable("lm.heat.*"),
            "`.trainable(\"lm.heat.*\")` matches no parameter; did you mean `lm.head.bias`?",
        ),
        (Lora::new("lm.*", 2), "`lm.0.norm` has a weight of dtype Float and shape [6]"),
        (Lora::new("lm.unnamed*", 2), "no module has such a name"),
    ];
    let _activation = Name::new("lora_test_activation");
    for (lora, expected) in cases {
        let text = mistake(|builder| builder.hook(lora));
        assert!(text.contains(expected), "{expected}\n{text}");
        assert!(!text.contains('\n'), "one mistake is one error: {text}");
    }
    let twice = mistake(|builder| builder.hook(Lora::new("*.q_proj", 2)).hook(Lora::new("lm.0.q*", 2)));
    assert!(twice.contains("`lm.0.q_proj` already has the adapters of another `Lora`"), "{twice}");
}

#[test]
fn a_weight_whose_module_has_no_name_is_refused() {
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let layer = |name: &str| nn::linear(&root / name, 2, 2, Default::default());
    let net = nn::seq().add(layer("lora_named").named("lora_named")).add(layer("lora_unnamed"));
    let task = Supervised::new(vs, net, |pred: &Tensor, _: &Tensor| pred.mean(Kind::Float));
    let text = Trainer::builder(task).discover(Discover::None).hook(Lora::new("lora_*named", 1)).build();
    let text = text.unwrap_err().to_string();
    assert!(
        text.contains("the weight `lora_unnamed.weight` matches, but no module has the name `lora_unnamed`"),
        "{text}"
    );
}

#[test]
fn modules_that_turn_out_not_to_be_linear_end_the_run() {
    let fails =
        |lora: Lora| builder(lora).epochs(1).build().unwrap().fit(&mut data(), None).unwrap_err().to_string();
    let text = fails(Lora::new("*.q_*", 2));
    assert!(
        text.contains(
            "`lm.0.q_act` matches a pattern of `Lora`, but the task has no weight `lm.0.q_act.weight`"
        ),
        "{text}"
    );
    let text = fails(Lora::new("*.c_attn", 2));
    assert!(
        text.contains(
            "`lm.0.c_attn` maps Float of shape [8, 6] to Float of shape [8, 5], but its weight has 5 inputs and 6 outputs: \
             expected a linear module; if its weight is `[in, out]`, add `.transposed(\"lm.0.c_attn\")`"
        ),
        "{text}"
    );
}

#[test]
fn an_embedding_is_refused_when_it_is_called() {
    let vs = nn::VarStore::new(device());
    let wte = nn::embedding(vs.root() / "lora_wte", 7, 3, Default::default()).named("lora_wte");
    let task = Supervised::new(vs, wte, |pred: &Tensor, _: &Tensor| pred.mean(Kind::Float));
    let builder = Trainer::builder(task).discover(Discover::None).optimizer(Sgd::new(0.1)).epochs(1);
    let mut trainer = builder.hook(Lora::new("lora_wte", 1)).build().unwrap();
    let tokens = || Tensor::arange(6, (Kind::Int64, device()));
    let mut data = InMemory::new((tokens(), tokens())).unwrap().batch_size(3);
    let text = trainer.fit(&mut data, None).unwrap_err().to_string();
    assert!(text.contains("`lora_wte` maps Int64 of shape [3] to Float of shape [3, 3]"), "{text}");
}

#[test]
fn two_hooks_can_adapt_different_modules() {
    let hooks = || {
        let one = Lora::new("*.q_proj", 2).trainable("lm.head.*");
        builder(one).hook(Lora::new("*.c_attn", 3).transposed("*.c_attn").trainable("*.norm.*")).epochs(1)
    };
    let mut trainer = hooks().build().unwrap();
    let before = values(&trainer);
    trainer.fit(&mut data(), None).unwrap();
    let changed: Vec<String> = values(&trainer)
        .into_iter()
        .filter(|(name, value)| !value.equal(&before[name]))
        .map(|(name, _)| name)
        .collect();
    let expected = [
        "lm.0.c_attn.lora_A.weight",
        "lm.0.c_attn.lora_B.weight",
        "lm.0.norm.bias",
        "lm.0.norm.weight",
        "lm.0.q_proj.lora_A.weight",
        "lm.0.q_proj.lora_B.weight",
        "lm.head.bias",
        "lm.head.weight",
    ];
    assert_eq!(changed, expected);
    let folder = scratch("lora-two");
    let loras: Vec<&Lora> = trainer.hooks::<Lora>().collect();
    let text = loras[0].save_merged(trainer.vars(), folder.join("a")).unwrap_err().to_string();
    assert!(
        text.contains("`lm.0.c_attn` has an adapter of another `Lora`: call `merge` on that `Lora` first"),
        "{text}"
    );
    loras[1].merge(trainer.vars()).unwrap();
    loras[0].save_merged(trainer.vars(), folder.join("a")).unwrap();
    let mut plain = Trainer::builder(task()).discover(Discover::None).build().unwrap();
    plain.load_weights(folder.join("a"), &LoadWeights::new()).unwrap();
    assert!(distance(&predictions(&mut plain), &predictions(&mut trainer)) < 1e-5);
    fs::remove_dir_all(folder).unwrap();
}

/// A run with everything that meets the adapters.
fn full(folder: &Path, at: Option<u64>) -> TrainerBuilder<Net> {
    let lora = lora().dropout(0.2).rs_lora(true);
    let builder = builder(lora)
        .epochs(3)
        .accumulate(2)
        .clip_grad_norm(0.5)
        .hook(Ema::new(0.9))
        .hook(Amp::bf16())
        .hook(Freeze::nothing().freeze_at(1, "*.q_proj.lora_*").thaw_at(2, "*.q_proj.lora_*"))
        .hook(Checkpoint::new(folder).every(Every::Steps(1)))
        .resume(Resume::Auto);
    cancelled_at(at, builder)
}

/// The bits of the variables, the optimizer and the averages, and the metrics.
type End = (Vec<(String, Vec<u64>)>, Vec<(String, Vec<f32>)>, String);

/// Trains until batch `at` or to the end; `None` if the run was cancelled.
#[cfg(target_os = "linux")]
fn end(folder: &Path, at: Option<u64>) -> Result<Option<End>> {
    let mut trainer = full(folder, at).build()?;
    let summary = match trainer.fit(&mut data().shuffle(5), Some(&mut data())) {
        Err(error) if error.is_cancelled() => return Ok(None),
        result => result?,
    };
    let averages = trainer.hook::<Ema>()?.average();
    let averages = averages.map(|(name, value)| (name.to_owned(), Vec::try_from(&value.view([-1])).unwrap()));
    Ok(Some((exact_state(&trainer), averages.collect(), format!("{:?}", summary.metrics))))
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_that_is_resumed_at_any_batch_ends_bit_for_bit_like_an_uninterrupted_one() {
    use trainer::testing::{Ranks, once};
    let folder = once(|| scratch("lora-resume"));
    // In processes of their own, where nothing else draws random numbers.
    for count in [1, 2] {
        let differing = Ranks::new(count).run(|| {
            let folder = folder.join(count.to_string());
            let whole = end(&folder.join("whole"), None)?;
            assert!(whole.is_some());
            let mut differing = Vec::new();
            for at in 1..12 {
                let folder = folder.join(at.to_string());
                assert!(end(&folder, Some(at))?.is_none());
                if end(&folder, None)? != whole {
                    differing.push(at);
                }
            }
            Ok(differing)
        });
        assert!(differing.unwrap().iter().all(Vec::is_empty));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_resume_with_other_settings_is_refused() {
    let folder = scratch("lora-settings");
    let run = |lora: Lora, at| {
        let builder = builder(lora).epochs(2).hook(Checkpoint::new(&folder)).resume(Resume::Auto);
        cancelled_at(at, builder).build().unwrap().fit(&mut data(), None)
    };
    assert!(run(lora(), Some(2)).unwrap_err().is_cancelled());
    let text = run(lora().alpha(4.0), None).unwrap_err().to_string();
    assert!(text.contains("Lora.alpha` was 8.0 when the checkpoint was written and is now 4.0"), "{text}");
    run(lora(), None).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn weights_of_the_plain_model_and_of_a_checkpoint_are_loaded() {
    let folder = scratch("lora-load");
    let plain = folder.join("plain.safetensors");
    let other = Trainer::builder(task()).discover(Discover::None).build().unwrap();
    let _ = tch::no_grad(|| other.vars().get("lm.0.q_proj.weight").unwrap().fill_(0.25));
    other.save_weights(&plain).unwrap();

    let mut trainer = builder(lora()).epochs(1).build().unwrap();
    let loaded = trainer.load_weights(&plain, &LoadWeights::new()).unwrap();
    assert_eq!((loaded.loaded.len(), loaded.missing.len(), loaded.kept.len()), (8, 0, 4));
    assert!(values(&trainer)["lm.0.q_proj.weight"].eq(0.25).all().int64_value(&[]) == 1);
    trainer.fit(&mut data(), None).unwrap();
    let whole = folder.join("whole.safetensors");
    trainer.save_weights(&whole).unwrap();

    let mut second = builder(lora()).build().unwrap();
    let loaded = second.load_weights(&whole, &LoadWeights::new()).unwrap();
    assert_eq!((loaded.loaded.len(), loaded.kept.len()), (12, 0));
    assert!(predictions(&mut second).equal(&predictions(&mut trainer)));
    // With some of the adapters, the others are missing.
    let mut third = builder(Lora::new(["*.q_proj", "lm.head"], 2)).build().unwrap();
    let skip = LoadWeights::new().skip("*.c_attn.lora_*");
    let text = third.load_weights(&whole, &skip).unwrap_err().to_string();
    assert!(text.contains("missing: `lm.head.lora_A.weight`"), "{text}");
    // Without the hook, the adapters are unexpected.
    let mut plain = Trainer::builder(task()).discover(Discover::None).build().unwrap();
    let text = plain.load_weights(&whole, &LoadWeights::new()).unwrap_err().to_string();
    assert!(text.contains("unexpected: `lm.0.c_attn.lora_A.weight`"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

/// The largest difference, relative to the largest value.
fn relative(one: &Tensor, other: &Tensor) -> f64 {
    distance(one, other) / other.abs().max().double_value(&[])
}

#[test]
fn merged_weights_compute_the_same_outputs() {
    let folder = scratch("lora-merge");
    let mut trainer = builder(lora()).epochs(4).build().unwrap();
    trainer.fit(&mut data(), None).unwrap();
    let before = predictions(&mut trainer);
    let path = folder.join("merged.safetensors");
    trainer.hook::<Lora>().unwrap().save_merged(trainer.vars(), &path).unwrap();
    let mut plain = Trainer::builder(task()).discover(Discover::None).build().unwrap();
    let loaded = plain.load_weights(&path, &LoadWeights::new()).unwrap();
    assert!(loaded.missing.is_empty() && loaded.unexpected.is_empty());
    assert!(relative(&predictions(&mut plain), &before) < 1e-6);
    assert!(predictions(&mut trainer).equal(&before), "the variables do not change");

    trainer.hook::<Lora>().unwrap().merge(trainer.vars()).unwrap();
    assert!(relative(&predictions(&mut trainer), &before) < 1e-6);
    let b = trainer.vars().get("lm.0.q_proj.lora_B.weight").unwrap();
    assert!(b.abs().max().double_value(&[]) == 0.0);
    trainer.fit(&mut data(), None).unwrap();
    assert!(relative(&predictions(&mut trainer), &before) > 1e-3);

    let foreign = builder(lora()).build().unwrap();
    let text = trainer.hook::<Lora>().unwrap().merge(foreign.vars()).unwrap_err().to_string();
    assert!(
        text.contains("these are not the variables of the trainer that this `Lora` belongs to"),
        "{text}"
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn adapters_are_saved_and_read_in_the_layout_of_peft() {
    let folder = scratch("lora-peft");
    let mut trainer = builder(lora().dropout(0.1).rs_lora(true)).epochs(2).build().unwrap();
    trainer.fit(&mut data(), None).unwrap();
    let save = |prefix| trainer.hook::<Lora>().unwrap().save_peft(trainer.vars(), &folder, prefix).unwrap();
    save("base");
    save("base"); // files of these formats are replaced
    let saved = Tensor::read_safetensors(folder.join("adapter_model.safetensors")).unwrap();
    let mut names: Vec<&str> = saved.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "base_model.model.base.lm.0.c_attn.lora_A.weight",
        "base_model.model.base.lm.0.c_attn.lora_B.weight",
        "base_model.model.base.lm.0.q_proj.lora_A.weight",
        "base_model.model.base.lm.0.q_proj.lora_B.weight",
        "base_model.model.base.lm.head.bias",
        "base_model.model.base.lm.head.weight",
    ];
    assert_eq!(names, expected);

    let lora = Lora::from_peft(&folder, "base").unwrap();
    assert!((lora.scale() - 8.0 / 2f64.sqrt()).abs() < 1e-12);
    let mut second = builder(lora).build().unwrap();
    assert!(predictions(&mut second).equal(&predictions(&mut trainer)));

    let text =
        Lora::from_peft(&folder, "").map(|lora| builder(lora).build().unwrap_err().to_string()).unwrap();
    assert!(text.contains("no module has such a name"), "{text}");
    let text = Lora::from_peft(&folder, "other").err().unwrap().to_string();
    assert!(text.contains("does not begin with `base_model.model.other.`"), "{text}");
    let path = folder.join("adapter_config.json");
    let config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for (field, value, expected) in [
        ("peft_type", "IA3".into(), "its `peft_type` is `IA3`, which `Lora` does not support"),
        ("bias", "all".into(), "its `bias` is `all`"),
        ("use_dora", true.into(), "it has `use_dora` = true"),
        ("rank_pattern", serde_json::json!({"a": 2}), "it has `rank_pattern` = {\"a\":2}"),
    ] {
        let mut changed = config.clone();
        changed[field] = value;
        fs::write(&path, changed.to_string()).unwrap();
        let text = Lora::from_peft(&folder, "base").err().unwrap().to_string();
        assert!(text.contains(expected) && text.contains("adapter_config.json"), "{text}");
    }
    fs::write(&path, "{}").unwrap();
    let text =
        trainer.hook::<Lora>().unwrap().save_peft(trainer.vars(), &folder, "").unwrap_err().to_string();
    assert!(text.contains("it is not an adapter configuration: move it elsewhere"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn adapters_of_a_different_shape_are_refused() {
    let folder = scratch("lora-peft-shape");
    let trainer = builder(Lora::new("*.q_proj", 2)).build().unwrap();
    trainer.hook::<Lora>().unwrap().save_peft(trainer.vars(), &folder, "").unwrap();
    let vs = nn::VarStore::new(device());
    let path = vs.root() / "lm" / 0 / "q_proj";
    let net = nn::linear(&path, 9, 6, Default::default()).named(&path);
    let loss: Loss = |pred, _| pred.mean(Kind::Float);
    let builder = Trainer::builder(Supervised::new(vs, net, loss)).discover(Discover::None);
    let text = builder.hook(Lora::from_peft(&folder, "").unwrap()).build().unwrap_err().to_string();
    assert!(text.contains("has the shapes [2, 4] and [6, 2]: expected [2, 9] and [6, 2]"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn finding_a_learning_rate_leaves_the_adapters_unchanged() {
    let mut trainer = builder(lora()).epochs(1).build().unwrap();
    let before = exact_state(&trainer);
    let curve = trainer.find_lr(&mut data().shuffle(1), &LearningRateFinder::new().steps(20)).unwrap();
    assert!(!format!("{curve:?}").is_empty());
    assert!(exact_state(&trainer) == before);
    trainer.fit(&mut data(), None).unwrap();
}

#[test]
fn half_precision_models_have_adapters_in_f32() {
    let mut vs = nn::VarStore::new(device());
    let net = net(&vs.root());
    vs.bfloat16();
    let loss: Loss = |logits, labels| logits.to_kind(Kind::Float).cross_entropy_for_logits(labels);
    let builder = Trainer::builder(Supervised::new(vs, net, loss)).discover(Discover::None);
    let mut trainer =
        builder.optimizer(AdamW::new(0.05)).epochs(1).hook(Lora::new("*.q_proj", 2)).build().unwrap();
    assert_eq!(trainer.vars().get("lm.0.q_proj.lora_A.weight").unwrap().kind(), Kind::Float);
    let inputs = (Tensor::arange(26 * 4, FLOAT) * 0.37).sin().view([26, 4]).to_kind(Kind::BFloat16);
    let labels = Tensor::arange(26, (Kind::Int64, device())).remainder(3);
    trainer.fit(&mut InMemory::new((inputs, labels)).unwrap().batch_size(8), None).unwrap();
    let b = trainer.vars().get("lm.0.q_proj.lora_B.weight").unwrap();
    assert!(b.abs().max().double_value(&[]) > 0.0);
}

#[test]
fn patterns_may_be_optional() {
    let modules = Patterns::from("*.q_proj").optional("*.lora_missing");
    builder(Lora::new(modules, 2)).build().unwrap();
}

/// Trains with and without `Sharded`, and returns the losses and the adapters.
#[cfg(target_os = "linux")]
fn trained(sharded: bool) -> Result<(f64, Vec<Vec<f32>>)> {
    let builder = builder(lora()).epochs(3).accumulate(2).clip_grad_norm(0.5);
    let builder = if sharded { builder.optimizer(Sharded::new(AdamW::new(0.05))) } else { builder };
    let mut trainer = builder.hook(Ema::new(0.9)).build()?;
    let summary = trainer.fit(&mut data().shuffle(5), Some(&mut data()))?;
    let adapters = trainer.vars().iter().filter(|var| var.tensor.requires_grad());
    let values = adapters.map(|var| Vec::try_from(&var.tensor.detach().view([-1])).unwrap());
    Ok((summary.metrics["valid/loss"], values.collect()))
}

#[test]
#[cfg(target_os = "linux")]
fn several_ranks_train_the_same_adapters_as_a_single_process() {
    use trainer::testing::{Ranks, once};
    let (loss, alone) = once(|| trained(false).unwrap());
    for sharded in [false, true] {
        let all = Ranks::new(2).run(|| trained(sharded)).unwrap();
        assert_eq!(all[0], all[1]);
        assert!((all[0].0 - loss).abs() < 1e-5, "{} {loss}", all[0].0);
        for (one, other) in all[0].1.iter().flatten().zip(alone.iter().flatten()) {
            assert!((one - other).abs() < 1e-4, "{one} {other}");
        }
    }
}
