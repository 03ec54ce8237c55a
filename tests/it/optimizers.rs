//! Optimizers: agreement with PyTorch, parameter groups, freezing, and restored state.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use trainer::data::from_fn;
use trainer::hooks::HyperparameterSchedule;
use trainer::optim::{
    Adagrad, Adam, Algorithm, Custom, Group, Lion, Muon, ParamGroup, RmsProp, Setting, StateSlot, Tch,
};
use trainer::prelude::*;
use trainer::schedule::Constant;

use crate::support::device;

/// The tensors that `reference/optimizers.py` writes.
static REFERENCE: LazyLock<Mutex<HashMap<String, Tensor>>> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/optimizers.safetensors");
    Mutex::new(Tensor::read_safetensors(path).unwrap().into_iter().collect())
});

fn reference(name: &str) -> Tensor {
    REFERENCE.lock().unwrap()[name].shallow_clone()
}

/// The model of the reference: `sometimes` is used in every third step, `never` in none.
pub(crate) struct Net {
    pub(crate) vs: nn::VarStore,
    fc1: nn::Linear,
    fc2: nn::Linear,
    sometimes: Tensor,
    step: i64,
    losses: Vec<f64>,
}

impl Net {
    pub(crate) fn new(kind: Kind) -> Self {
        tch::set_num_threads(1);
        let mut vs = nn::VarStore::new(device());
        let root = vs.root();
        let fc1 = nn::linear(&root / "fc1", 8, 6, Default::default());
        let fc2 = nn::linear(&root / "fc2", 6, 4, Default::default());
        let sometimes = root.zeros("sometimes", &[4, 8]);
        let _ = root.ones("never", &[2, 2]);
        vs.set_kind(kind);
        tch::no_grad(|| {
            vs.variables()
                .into_iter()
                .for_each(|(name, mut var)| var.copy_(&reference(&format!("init.{name}"))));
        });
        Net { vs, fc1, fc2, sometimes, step: 0, losses: Vec::new() }
    }
}

impl Task for Net {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, (inputs, _): &Self::Batch, _: Mode) -> Result<Tensor> {
        let logits = inputs.apply(&self.fc1).relu().apply(&self.fc2);
        self.step += 1;
        Ok(if self.step % 3 == 1 { logits + inputs.matmul(&self.sometimes.tr()) } else { logits })
    }

    fn loss(&mut self, logits: &Tensor, (_, labels): &Self::Batch) -> Result<Tensor> {
        // tch's `cross_entropy_for_logits` computes in float.
        let loss = logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0);
        self.losses.push(loss.double_value(&[]));
        Ok(loss)
    }
}

pub(crate) type Builder = trainer::TrainerBuilder<Net>;

pub(crate) fn builder(kind: Kind, optimizer: impl Optimizer + 'static) -> Builder {
    Trainer::builder(Net::new(kind)).optimizer(optimizer).discover(Discover::None)
}

fn trainer_with(optimizer: impl Optimizer + 'static) -> Trainer<Net> {
    builder(Kind::Float, optimizer).build().unwrap()
}

/// Trains for `count` more steps.
pub(crate) fn train_steps(trainer: &mut Trainer<Net>, count: i64) {
    let begun = trainer.task().step;
    let kind = trainer.task().sometimes.kind();
    let inputs = reference("data.inputs").to_kind(kind);
    let labels = reference("data.labels");
    let mut batches =
        from_fn(|_| (begun..begun + count).map(|step| (inputs.get(step % 5), labels.get(step % 5))));
    trainer.fit(&mut batches, None).unwrap();
}

fn optimizer(trainer: &mut Trainer<Net>) -> &mut dyn Optimizer {
    trainer.optimizer_mut().unwrap()
}

/// Returns mutable access to the group of a parameter.
fn group_of<'a>(trainer: &'a mut Trainer<Net>, name: &str) -> &'a mut ParamGroup {
    let mut groups = optimizer(trainer).groups_mut().iter_mut();
    groups.find(|group| group.names().any(|known| known == name)).unwrap()
}

/// Returns a copy of every variable.
fn weights(trainer: &Trainer<Net>) -> Vec<(String, Tensor)> {
    trainer.vars().iter().map(|var| (var.name.clone(), var.tensor.detach().copy())).collect()
}

/// Returns the names of the tensors that differ in any bit.
fn differing(one: &[(String, Tensor)], other: &[(String, Tensor)]) -> Vec<String> {
    assert_eq!(one.len(), other.len());
    let pairs = one.iter().zip(other).filter(|((_, one), (_, other))| !one.equal(other));
    pairs.map(|((name, _), _)| name.clone()).collect()
}

/// Returns the optimizers of the reference runs, by name.
pub(crate) fn reference_runs() -> Vec<(&'static str, Box<dyn Optimizer>)> {
    // Muon only updates matrices: AdamW updates the biases, as in the reference.
    fn muon(muon: Muon) -> Box<dyn Optimizer> {
        Box::new(muon.group("*.bias", AdamW::new(1e-3)))
    }
    vec![
        ("sgd", Box::new(Sgd::new(0.1))),
        ("sgd_momentum", Box::new(Sgd::new(0.05).momentum(0.9))),
        ("sgd_nesterov", Box::new(Sgd::new(0.05).momentum(0.9).nesterov(true))),
        ("sgd_dampening", Box::new(Sgd::new(0.1).momentum(0.9).dampening(0.5).weight_decay(1e-3))),
        ("sgd_maximize", Box::new(Sgd::new(1e-3).momentum(0.9).weight_decay(0.1).maximize(true))),
        ("adam", Box::new(Adam::new(1e-2))),
        ("adam_weight_decay", Box::new(Adam::new(1e-2).betas(0.8, 0.95).eps(1e-6).weight_decay(1e-2))),
        ("adam_amsgrad", Box::new(Adam::new(1e-2).betas(0.9, 0.9).amsgrad(true))),
        ("adam_maximize", Box::new(Adam::new(1e-3).weight_decay(0.1).maximize(true))),
        ("adamw", Box::new(AdamW::new(1e-2).weight_decay(0.1))),
        ("adamw_amsgrad", Box::new(AdamW::new(1e-2).betas(0.9, 0.9).amsgrad(true))),
        ("adamw_maximize", Box::new(AdamW::new(1e-3).maximize(true))),
        ("rmsprop", Box::new(RmsProp::new(1e-3))),
        ("rmsprop_centered", Box::new(RmsProp::new(1e-3).alpha(0.9).eps(1e-4).centered(true))),
        ("rmsprop_momentum", Box::new(RmsProp::new(1e-3).momentum(0.5).weight_decay(1e-2))),
        ("rmsprop_maximize", Box::new(RmsProp::new(1e-4).weight_decay(1e-2).maximize(true))),
        ("adagrad", Box::new(Adagrad::new(0.05))),
        (
            "adagrad_lr_decay",
            Box::new(Adagrad::new(0.1).lr_decay(0.01).weight_decay(1e-2).initial_accumulator_value(0.1)),
        ),
        ("adagrad_maximize", Box::new(Adagrad::new(1e-3).maximize(true))),
        ("lion", Box::new(Lion::new(1e-3))),
        ("lion_weight_decay", Box::new(Lion::new(1e-3).betas(0.95, 0.98).weight_decay(0.1))),
        ("lion_maximize", Box::new(Lion::new(1e-4).maximize(true))),
        ("muon", muon(Muon::new(1e-2))),
        ("muon_full_precision", muon(Muon::new(1e-2).full_precision(true))),
        (
            "muon_match_rms_adamw",
            muon(
                Muon::new(1e-2)
                    .momentum(0.9)
                    .nesterov(false)
                    .ns_steps(3)
                    .match_rms_adamw(true)
                    .full_precision(true),
            ),
        ),
    ]
}

/// Returns how far the weights may deviate from PyTorch's after 200 steps on any processor. Kernels
/// differ in the order of sums and in fused multiply-adds, so each step may change each weight by
/// one rounding error (`epsilon`, as weights are below 2).
fn tolerance(run: &str, epsilon: f64) -> f64 {
    const STEPS: f64 = 200.0;
    let rounding = STEPS * epsilon;
    match run {
        // Each of the 5 iterations amplifies the rounding of a small singular value by up to
        // 3.4445, its largest slope; the learning rate of 1e-2 multiplies the result.
        "muon_full_precision" | "muon_match_rms_adamw" => rounding + rounding * 3.4445_f64.powi(5) * 1e-2,
        // In float, rounding may flip the sign of a mean near zero, which moves a weight by twice
        // the learning rate, which is at most 1e-3. Four of some 18,000 signs may flip; in double
        // none does.
        "lion" | "lion_weight_decay" | "lion_maximize" if epsilon > 1e-10 => rounding + 4.0 * 2.0 * 1e-3,
        _ => rounding,
    }
}

#[test]
fn two_hundred_steps_match_pytorch() {
    let mut off = Vec::new();
    for (kind, name, epsilon) in
        [(Kind::Float, "float", f64::from(f32::EPSILON)), (Kind::Double, "double", f64::EPSILON)]
    {
        for (run, optimizer) in reference_runs() {
            // Products in bf16 differ by processor, and 200 steps amplify that beyond any useful
            // bound: see `muon_deviates_from_the_exact_iteration_by_at_most_its_rounding`.
            if run == "muon" {
                continue;
            }
            let mut trainer = builder(kind, optimizer).build().unwrap();
            train_steps(&mut trainer, 200);
            let theirs = |what: &str| reference(&format!("{name}.{run}.{what}"));
            let losses = Tensor::from_slice(&trainer.task().losses).slice(0, 0, None, 20);
            let mut deviation = (losses - theirs("losses")).abs().max().double_value(&[]);
            for var in trainer.vars().parameters().filter(|var| var.name != "never") {
                let difference = (&var.tensor - theirs(&var.name)).abs().max().double_value(&[]);
                deviation = deviation.max(difference);
            }
            println!("{name} {run}: within {deviation:.1e}");
            if deviation > tolerance(run, epsilon) {
                off.push(format!("{name} {run}: {deviation:e}"));
            }
            assert_eq!(trainer.vars().get("never").unwrap().mean(kind).double_value(&[]), 1.0, "{run}");
        }
    }
    assert!(off.is_empty(), "{off:#?}");
}

/// A task whose weights are matrices with gradients that the test chooses.
struct Matrices {
    vs: nn::VarStore,
    weights: Vec<Tensor>,
    grads: Vec<Tensor>,
}

impl Task for Matrices {
    type Batch = Tensor;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, _: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(self.weights.iter().zip(&self.grads).map(|(weight, grad)| (weight * grad).sum(Kind::Float)).sum())
    }

    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.shallow_clone())
    }
}

/// Returns the updates that one step of Muon, with a learning rate of 1, adds to zero matrices for
/// these gradients.
fn muon_updates(grads: &[Tensor], iterations: u32, full_precision: bool) -> Vec<Tensor> {
    let vs = nn::VarStore::new(device());
    let weights: Vec<_> = grads
        .iter()
        .enumerate()
        .map(|(nth, grad)| vs.root().zeros(&format!("{nth}"), &grad.size()))
        .collect();
    let task = Matrices {
        vs,
        weights: weights.iter().map(Tensor::shallow_clone).collect(),
        grads: grads.iter().map(Tensor::shallow_clone).collect(),
    };
    let muon = Muon::new(1.0).weight_decay(0.0).ns_steps(iterations).full_precision(full_precision);
    let mut trainer = Trainer::builder(task).optimizer(muon).discover(Discover::None).build().unwrap();
    trainer.fit(&mut from_fn(|_| [Tensor::zeros([1], (Kind::Float, device()))]), None).unwrap();
    let update = |weight: &Tensor| {
        let size = weight.size();
        weight.detach() / -(size[0] as f64 / size[1] as f64).max(1.0).sqrt()
    };
    weights.iter().map(update).collect()
}

/// Returns the singular values of a matrix after Jordan's iteration in double, and the largest
/// deviation in Frobenius norm of an iteration whose numbers have a relative rounding error of at
/// most `u`.
///
/// One iteration on a matrix with the singular values `s` rounds three times: the Gram matrix, by
/// at most `u ‖s²‖`; the polynomial of it, by `u ‖b s² + c s⁴‖`; and the result, by `u ‖p(s)‖`. The
/// second and the third product multiply the earlier errors by at most `|b| + 2 |c| max s²` and
/// `max s`. One iteration multiplies an earlier error by at most the largest divided difference of
/// `p`. A factor of 1.5 covers products of errors, and the sums within matrix products, which are
/// in float.
fn iterated(singular_values: &[f64], iterations: u32, u: f64) -> (Vec<f64>, f64) {
    let a = 3.4445;
    let b = -4.7750;
    let c = 2.0315;
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let frobenius = norm(&mut singular_values.iter().copied());
    let mut s: Vec<f64> = singular_values.iter().map(|value| value / frobenius).collect();
    // The update, its norm and the quotient are rounded, by `u` each.
    let mut error = 3.0 * u;
    for _ in 0..iterations {
        let p = |s: f64| a * s + b * s.powi(3) + c * s.powi(5);
        let largest = s.iter().copied().fold(0.0, f64::max);
        let gram = u * norm(&mut s.iter().map(|s| s * s));
        let polynomial = gram * (b.abs() + 2.0 * c * largest * largest)
            + u * norm(&mut s.iter().map(|s| b * s * s + c * s.powi(4)));
        let rounding = polynomial * largest + u * norm(&mut s.iter().map(|s| p(*s)));
        let mut slope = 0.0_f64;
        for (nth, one) in s.iter().enumerate() {
            slope = slope.max((a + 3.0 * b * one * one + 5.0 * c * one.powi(4)).abs());
            for other in &s[..nth] {
                if (one - other).abs() > 1e-6 {
                    slope = slope.max(((p(*one) - p(*other)) / (one - other)).abs());
                }
                slope = slope.max(((p(*one) + p(*other)) / (one + other)).abs());
            }
        }
        error = slope * error + rounding;
        s = s.iter().map(|s| p(*s)).collect();
    }
    (s, 1.5 * error)
}

#[test]
fn muon_deviates_from_the_exact_iteration_by_at_most_its_rounding() {
    tch::set_num_threads(1);
    // Gradients with known singular values, none of them small, because the iteration amplifies the
    // rounding errors of small ones. Three are computed as one batch, because their shapes are
    // equal or transposed.
    let sizes = [[6, 6], [4, 12], [12, 4], [4, 12]];
    let scaled = |nth: usize, values: &[f64]| {
        let least = values.len() as i64;
        let wave = |rows: i64, seed: f64| {
            let values = Tensor::arange(rows * least, (Kind::Double, device())) * (seed + nth as f64);
            Tensor::linalg_qr(&values.sin().view([rows, least]), "reduced").0
        };
        let left = wave(sizes[nth][0], 1.3);
        let right = wave(sizes[nth][1], 2.9);
        (left * Tensor::from_slice(values)).matmul(&right.tr())
    };
    let values = |nth: usize| -> Vec<f64> {
        let least = sizes[nth][0].min(sizes[nth][1]);
        (0..least).map(|value| 1.0 + 0.1 * value as f64 + 0.05 * nth as f64).collect()
    };
    let grads: Vec<_> = (0..sizes.len()).map(|nth| scaled(nth, &values(nth)).to_kind(Kind::Float)).collect();

    // Half a unit in the last place: of bf16, and of float with sums of up to 12 products.
    let of_bf16 = 1.0 / 256.0;
    let of_float = 12.0 * f64::from(f32::EPSILON);
    // For more iterations in bf16, the bound would be too wide to be useful.
    for (iterations, full_precision, u) in
        [(1, false, of_bf16), (2, false, of_bf16), (1, true, of_float), (5, true, of_float)]
    {
        let updates = muon_updates(&grads, iterations, full_precision);
        for (nth, update) in updates.iter().enumerate() {
            let (iterated, bound) = iterated(&values(nth), iterations, u);
            let exact = scaled(nth, &iterated);
            let distance = (update.to_kind(Kind::Double) - &exact).norm().double_value(&[]);
            let (bound, distance) =
                [bound, distance].map(|norm| norm / exact.norm().double_value(&[])).into();
            let size = sizes[nth];
            let what = format!("{size:?}, {iterations} iterations, full precision {full_precision}");
            println!("{what}: within {distance:.1e} of {bound:.1e}");
            assert!(distance <= bound, "{what}: {distance} is above {bound}");
            assert!(bound < 0.5, "{what}: the bound {bound} is too wide to be useful");
            // If the factor by shape is 1, the update is unchanged since the iteration, so its
            // precision is known.
            let rounded = update.to_kind(Kind::BFloat16).to_kind(Kind::Float);
            assert!(
                size[0] > size[1] || full_precision != update.equal(&rounded),
                "{what}: the iteration ran in the other precision"
            );
        }
    }
}

#[test]
fn step_counts_include_only_steps_with_a_gradient() {
    for (run, optimizer) in reference_runs() {
        let mut trainer = trainer_with(optimizer);
        train_steps(&mut trainer, 10);
        for (name, count) in trainer.optimizer().unwrap().state() {
            let expected = match name.strip_prefix("step/") {
                None => continue,
                Some("sometimes") => 4.0,
                Some("never") => 0.0,
                Some(_) => 10.0,
            };
            assert_eq!(count.double_value(&[]), expected, "{run}: {name}");
        }
    }
}

/// The weights and gradients before each step.
type Seen = Vec<(Vec<Tensor>, Vec<Tensor>)>;

#[test]
fn a_half_precision_step_matches_the_float_step_rounded_once() {
    let detached =
        |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.detach().copy()).collect::<Vec<_>>();
    for kind in [Kind::BFloat16, Kind::Half] {
        for (run, optimizer) in reference_runs() {
            let before = Arc::new(Mutex::new(Seen::new()));
            let after = Arc::new(Mutex::new(Vec::new()));
            let note_before = Arc::clone(&before);
            let note_after = Arc::clone(&after);
            let weights_of = move |vars: &trainer::Vars| {
                vars.parameters().map(|var| var.tensor.shallow_clone()).collect::<Vec<_>>()
            };
            let mut rounded = builder(kind, optimizer)
                .on::<BeforeOptStep>("before", move |cx| {
                    let grads: Vec<_> = cx.grads().map(|(_, grad)| grad).collect();
                    note_before.lock().unwrap().push((detached(&weights_of(&cx.vars())), detached(&grads)));
                })
                .on::<AfterOptStep>("after", move |cx| {
                    note_after.lock().unwrap().push(detached(&weights_of(&cx.vars())));
                })
                .build()
                .unwrap();
            train_steps(&mut rounded, 7);

            // The same steps in float, each from the same weights and gradients.
            let optimizer = reference_runs().into_iter().find(|(name, _)| *name == run).unwrap().1;
            let before = before.lock().unwrap().drain(..).collect::<Vec<_>>().into_iter();
            let after = after;
            let mut before = before;
            let mut nth = 0;
            let mut float = builder(Kind::Float, optimizer)
                .on::<BeforeOptStep>("before", move |cx| {
                    let (weights, grads) = before.next().unwrap();
                    let own = weights_of(&cx.vars()).into_iter().chain(cx.grads().map(|(_, grad)| grad));
                    let _guard = tch::no_grad_guard();
                    own.zip(weights.iter().chain(&grads)).for_each(|(mut own, tensor)| own.copy_(tensor));
                })
                .on::<AfterOptStep>("after", move |cx| {
                    for (own, it) in weights_of(&cx.vars()).iter().zip(&after.lock().unwrap()[nth]) {
                        assert!(own.to_kind(kind).equal(it), "{run} in {kind:?}, step {nth}: {own} {it}");
                    }
                    nth += 1;
                })
                .build()
                .unwrap();
            train_steps(&mut float, 7);
            let rounded = rounded.optimizer().unwrap().state();
            let float = float.optimizer().unwrap().state();
            assert!(rounded.iter().all(|(_, tensor)| tensor.kind() == Kind::Float), "{run}");
            assert_eq!(differing(&rounded, &float), Vec::<String>::new(), "{run}");
        }
    }
}

#[test]
fn parameters_are_grouped_by_first_matching_pattern_and_var_store_group() {
    let net = Net::new(Kind::Float);
    {
        let mut variables = net.vs.variables_.lock().unwrap();
        let fc2 = variables.named_variables["fc2.weight"].data_ptr();
        variables.trainable_variables.iter_mut().find(|var| var.tensor.data_ptr() == fc2).unwrap().group = 3;
    }
    let adamw = AdamW::new(1e-2)
        .group("*.bias", Group::new().weight_decay(0.0))
        .group("fc?.*", Group::new().lr(1e-4).set("beta2", 0.9))
        .group("never", Sgd::new(0.5).momentum(0.9));
    let trainer = Trainer::builder(net).optimizer(adamw).discover(Discover::None).build().unwrap();
    let groups: Vec<_> = (trainer.optimizer().unwrap().groups().iter())
        .map(|group| {
            let names = group.names().collect::<Vec<_>>().join(" ");
            let settings =
                group.settings().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>();
            format!("{:?} {} {names}: {}", group.pattern(), group.group, settings.join(", "))
        })
        .collect();
    let adamw = "eps 0.00000001, amsgrad 0, maximize 0";
    assert_eq!(
        groups,
        [
            format!(
                "None 0 sometimes: lr 0.01, weight_decay 0.01, frozen 0, beta1 0.9, beta2 0.999, {adamw}"
            ),
            format!(
                "Some(\"*.bias\") 0 fc1.bias fc2.bias: \
                 lr 0.01, weight_decay 0, frozen 0, beta1 0.9, beta2 0.999, {adamw}"
            ),
            format!(
                "Some(\"fc?.*\") 0 fc1.weight: lr 0.0001, weight_decay 0.01, frozen 0, beta1 0.9, beta2 0.9, {adamw}"
            ),
            format!(
                "Some(\"fc?.*\") 3 fc2.weight: lr 0.0001, weight_decay 0.01, frozen 0, beta1 0.9, beta2 0.9, {adamw}"
            ),
            "Some(\"never\") 0 never: \
             lr 0.5, weight_decay 0, frozen 0, momentum 0.9, dampening 0, nesterov 0, maximize 0"
                .to_owned(),
        ]
    );
}

#[test]
fn splitting_parameters_into_equal_groups_changes_nothing() {
    for (run, [one, two]) in [
        (
            "adamw",
            [AdamW::new(1e-2), AdamW::new(1e-2)].map(|optimizer| Box::new(optimizer) as Box<dyn Optimizer>),
        ),
        ("sgd", [Box::new(Sgd::new(0.1)), Box::new(Sgd::new(0.1).group("fc1.*", Group::new()))]),
        (
            "within",
            [
                Box::new(Adam::new(1e-2).amsgrad(true)),
                Box::new(Lion::new(1.0).group("*", Adam::new(1e-2).amsgrad(true))),
            ],
        ),
    ] {
        let trained = [one, two].map(|optimizer| {
            let mut trainer = trainer_with(optimizer);
            train_steps(&mut trainer, 20);
            weights(&trainer)
        });
        assert_eq!(differing(&trained[0], &trained[1]), Vec::<String>::new(), "{run}");
    }
}

#[test]
fn all_optimizer_mistakes_are_reported_at_build() {
    fn mistakes(optimizer: impl Optimizer + 'static) -> Vec<String> {
        match builder(Kind::Float, optimizer).build().unwrap_err() {
            Error::Build(error) => error.mistakes,
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        mistakes(AdamW::new(-1.0).betas(1.0, f64::NAN).eps(f64::INFINITY)),
        [
            "the optimizer's `lr` is -1: expected at least 0",
            "the optimizer's `beta1` is 1: expected at least 0 and below 1",
            "the optimizer's `beta2` is NaN: expected at least 0 and below 1",
            "the optimizer's `eps` is inf: expected a finite number",
        ]
    );
    assert_eq!(
        mistakes(
            Sgd::new(0.1)
                .group("fc1.wieght", Group::new())
                .group("fc*", Group::new().lr(-1.0))
                .group("fc2.*", Group::new())
                .group("never", Group::new().set("momentun", 0.9))
                .group("sometimes", AdamW::new(-1.0).group("*", Group::new()))
        ),
        [
            "`.group(\"fc1.wieght\", …)`: no parameter matches; did you mean `fc1.weight`?",
            "`.group(\"fc2.*\", …)`: every parameter that it matches is already in an earlier group, because the first \
             matching pattern wins: add this group before that one",
            "`.group(\"fc*\", …)`: the optimizer's `lr` is -1: expected at least 0",
            "`.group(\"never\", …)`: Sgd has no hyperparameter `momentun`: it has `lr`, `weight_decay`, `frozen`, \
             `momentum`, `dampening`, `nesterov`, `maximize`; did you mean `momentum`?",
            "`.group(\"sometimes\", …)`: the optimizer's `lr` is -1: expected at least 0",
            "`.group(\"sometimes\", …)`: an optimizer inside a group cannot have groups: add them to the outer \
             optimizer",
        ]
    );
    assert_eq!(
        mistakes(Sgd::new(0.1).nesterov(true)),
        ["Nesterov momentum in `Sgd` requires momentum without dampening: `.momentum(0.9).nesterov(true)`"]
    );
    assert_eq!(
        mistakes(Muon::new(0.02).ns_steps(0)),
        [
            "the optimizer's `ns_steps` is 0: expected a whole number, at least 1 and below 100",
            "Muon only updates 2-D parameters, but these are not: `fc1.bias` [6], `fc2.bias` [4]; assign them to another \
             optimizer, `.group(\"*.bias\", AdamW::new(1e-3))`",
        ]
    );
}

#[test]
fn a_group_can_be_frozen_and_thawed_while_training() {
    for (run, _) in reference_runs() {
        let frozen = Group::new().frozen(true);
        let optimizer: Box<dyn Optimizer> = match run {
            "adamw" => Box::new(AdamW::new(1e-2).group("fc1.*", frozen)),
            "sgd_momentum" => Box::new(Sgd::new(0.05).momentum(0.9).group("fc1.*", frozen)),
            "rmsprop" => Box::new(RmsProp::new(1e-3).group("fc1.*", frozen)),
            "lion" => Box::new(Lion::new(1e-3).group("fc1.*", frozen)),
            _ => continue,
        };
        let mut trainer = trainer_with(optimizer);
        let of_fc1 = |(name, _): &(String, Tensor)| name.contains("fc1");
        let moves = |trainer: &mut Trainer<Net>| {
            let before = weights(trainer);
            train_steps(trainer, 10);
            differing(&before, &weights(trainer))
        };
        assert_eq!(moves(&mut trainer), ["fc2.bias", "fc2.weight", "sometimes"], "{run}");
        assert!(!trainer.vars().get("fc1.weight").unwrap().requires_grad(), "{run}");
        assert!(
            !trainer.optimizer().unwrap().state().iter().any(of_fc1),
            "{run}: a frozen group has no state"
        );

        group_of(&mut trainer, "fc1.weight").set_frozen(false).unwrap();
        let all = ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight", "sometimes"];
        assert_eq!(moves(&mut trainer), all, "{run}");

        let group = group_of(&mut trainer, "fc1.weight");
        group.set("frozen", 1.0).unwrap();
        assert!(group.is_frozen());
        assert_eq!(moves(&mut trainer), all[2..], "{run}");
        assert!(
            trainer.optimizer().unwrap().state().iter().any(of_fc1),
            "{run}: the state is kept for when the group is thawed"
        );
    }
}

#[test]
fn every_hyperparameter_can_be_read_and_set_by_name_while_training() {
    for (run, optimizer) in reference_runs() {
        let mut trainer = trainer_with(optimizer);
        train_steps(&mut trainer, 3);
        for group in groups_mut(&mut trainer) {
            let names: Vec<_> = group.settings().map(|(name, _)| name.to_owned()).collect();
            for name in names.iter().filter(|name| *name != "frozen") {
                let changed = 1.0 - group.get(name).unwrap().round();
                let changed = if group.set(name, changed).is_ok() { changed } else { 0.5 };
                let changed = if name == "ns_steps" { 2.0 } else { changed };
                group.set(name, changed).unwrap();
                assert_eq!(group.get(name).unwrap(), changed, "{run}: {name}");
                let error = group.set(name, f64::NAN).unwrap_err().to_string();
                assert!(error.contains(&format!("the optimizer's `{name}` is NaN: expected ")), "{error}");
                assert_eq!(group.get(name).unwrap(), changed, "{run}: {name} stays as it was");
            }
            assert_eq!(group.lr, group.get("lr").unwrap());
            let error = group.set("weight_decai", 0.0).unwrap_err().to_string();
            assert!(error.contains("did you mean `weight_decay`?"), "{error}");
            assert_eq!(group.get("weight_decai").unwrap_err().to_string(), error);
        }
        train_steps(&mut trainer, 3);
    }
}

/// Returns mutable access to the parameter groups.
fn groups_mut(trainer: &mut Trainer<Net>) -> &mut [ParamGroup] {
    trainer.optimizer_mut().unwrap().groups_mut()
}

#[test]
fn settings_changed_before_the_first_step_match_those_set_at_construction() {
    type Case = (Box<dyn Optimizer>, Box<dyn Optimizer>, &'static [(&'static str, f64)]);
    let cases: [Case; 4] = [
        (
            Box::new(Sgd::new(0.05).momentum(0.9).nesterov(true).weight_decay(0.1)),
            Box::new(Sgd::new(1.0)),
            &[("lr", 0.05), ("momentum", 0.9), ("nesterov", 1.0), ("weight_decay", 0.1)],
        ),
        (
            Box::new(Adam::new(1e-2).betas(0.8, 0.9).eps(1e-4).amsgrad(true).maximize(true)),
            Box::new(Adam::new(1e-2)),
            &[("beta1", 0.8), ("beta2", 0.9), ("eps", 1e-4), ("amsgrad", 1.0), ("maximize", 1.0)],
        ),
        (
            Box::new(RmsProp::new(1e-3).alpha(0.9).centered(true).momentum(0.5)),
            Box::new(RmsProp::new(1e-3)),
            &[("alpha", 0.9), ("centered", 1.0), ("momentum", 0.5)],
        ),
        (
            Box::new(Adagrad::new(0.1).lr_decay(0.1).eps(1e-3)),
            Box::new(Adagrad::new(0.1)),
            &[("lr_decay", 0.1), ("eps", 1e-3)],
        ),
    ];
    for (expected, optimizer, settings) in cases {
        let mut expected = trainer_with(expected);
        let mut trainer = trainer_with(optimizer);
        for (name, value) in settings {
            groups_mut(&mut trainer)[0].set(name, *value).unwrap();
        }
        train_steps(&mut expected, 10);
        train_steps(&mut trainer, 10);
        assert_eq!(differing(&weights(&expected), &weights(&trainer)), Vec::<String>::new(), "{settings:?}");
    }
}

#[test]
fn restored_optimizer_state_continues_bit_for_bit() {
    for (run, optimizer) in reference_runs() {
        let again = || reference_runs().into_iter().find(|(name, _)| *name == run).unwrap().1;
        let mut uninterrupted = trainer_with(optimizer);
        train_steps(&mut uninterrupted, 100);
        let saved = weights(&uninterrupted);
        let state = uninterrupted.optimizer().unwrap().state();
        let state: Vec<_> = state.into_iter().map(|(name, tensor)| (name, tensor.copy())).collect();
        train_steps(&mut uninterrupted, 100);

        let mut restored = trainer_with(again());
        restored.task_mut().step = 100;
        let _guard = tch::no_grad_guard();
        saved
            .iter()
            .for_each(|(name, tensor)| restored.vars().get(name).unwrap().shallow_clone().copy_(tensor));
        // These tensors share their storage with the optimizer's state.
        for ((name, mut own), (saved, it)) in restored.optimizer().unwrap().state().into_iter().zip(&state) {
            assert_eq!(name, *saved);
            own.copy_(it);
        }
        train_steps(&mut restored, 100);
        assert_eq!(differing(&weights(&uninterrupted), &weights(&restored)), Vec::<String>::new(), "{run}");
        let states = [&uninterrupted, &restored].map(|trainer| trainer.optimizer().unwrap().state());
        assert_eq!(differing(&states[0], &states[1]), Vec::<String>::new(), "{run}");
    }
}

#[test]
fn the_state_of_a_refrozen_group_is_restored() {
    let adamw = || AdamW::new(1e-2).group("fc1.*", Group::new().frozen(true));
    let mut uninterrupted = trainer_with(adamw());
    let thaw = |trainer: &mut Trainer<Net>, thaw: bool| {
        group_of(trainer, "fc1.weight").set_frozen(!thaw).unwrap();
        train_steps(trainer, 10);
    };
    thaw(&mut uninterrupted, true);
    thaw(&mut uninterrupted, false);
    let saved = weights(&uninterrupted);
    let state = uninterrupted.optimizer().unwrap().state();
    let state: Vec<_> = state.into_iter().map(|(name, tensor)| (name, tensor.copy())).collect();
    thaw(&mut uninterrupted, true);

    let mut restored = trainer_with(adamw());
    restored.task_mut().step = 20;
    tch::no_grad(|| {
        saved
            .iter()
            .for_each(|(name, tensor)| restored.vars().get(name).unwrap().shallow_clone().copy_(tensor));
    });
    optimizer(&mut restored).load_state(&state).unwrap();
    thaw(&mut restored, true);
    assert_eq!(differing(&weights(&uninterrupted), &weights(&restored)), Vec::<String>::new());

    // All mismatches are reported.
    let mut other = state;
    other.retain(|(name, _)| name != "exp_avg/sometimes");
    other.push(("exp_avg/fc3.weight".to_owned(), Tensor::zeros([1], (Kind::Float, device()))));
    other.iter_mut().find(|(name, _)| name == "step/never").unwrap().1 =
        Tensor::zeros([2], (Kind::Float, device()));
    assert_eq!(
        optimizer(&mut restored).load_state(&other).unwrap_err().to_string(),
        "the state does not match this optimizer: `exp_avg/sometimes` is missing; `step/never`: expected shape [], \
         found [2] in the saved state; `exp_avg/fc3.weight` is unexpected; \
         load a state that this optimizer saved for the same parameters"
    );
}

#[test]
fn a_tch_optimizer_trains_like_its_native_counterpart() {
    let net = Net::new(Kind::Float);
    let adam = Tch::new(nn::Adam::default(), &net.vs, 1e-2).unwrap();
    let mut theirs = Trainer::builder(net).optimizer(adam).discover(Discover::None).build().unwrap();
    let mut ours = trainer_with(Adam::new(1e-2));
    for (lr, weight_decay) in [(1e-2, 0.0), (1e-3, 0.0), (2e-3, 0.1)] {
        for trainer in [&mut theirs, &mut ours] {
            let group = &mut groups_mut(trainer)[0];
            group.lr = lr;
            group.weight_decay = weight_decay;
            train_steps(trainer, 10);
        }
        for (one, other) in theirs.vars().iter().zip(ours.vars().iter()) {
            assert!(one.tensor.allclose(&other.tensor, 1e-5, 1e-6, false), "{} at lr {lr}", one.name);
        }
    }
    assert!(ours.optimizer().unwrap().state_is_complete());
    assert!(!theirs.optimizer().unwrap().state_is_complete());
    let names: Vec<_> = groups_mut(&mut theirs)[0].settings().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(names, ["lr", "weight_decay", "frozen"]);
    groups_mut(&mut theirs)[0].set_frozen(true).unwrap();
    assert!(theirs.vars().parameters().all(|var| !var.tensor.requires_grad()));

    let elsewhere = Tch::new(nn::Adam::default(), &Net::new(Kind::Float).vs, 1e-2).unwrap();
    let error = builder(Kind::Float, elsewhere).build().unwrap_err().to_string();
    assert!(error.contains("updates every parameter of the `VarStore` that it was built for"), "{error}");
}

/// AdamW as a program writes it, with single-tensor operations.
pub(crate) static BY_HAND: Algorithm = Algorithm::new("AdamWByHand", by_hand)
    .settings(&[
        Setting::fraction("beta1", 0.9),
        Setting::fraction("beta2", 0.999),
        Setting::at_least("eps", 0.0, 1e-8),
        Setting::flag("amsgrad", false),
    ])
    .state(&[
        StateSlot::elements("exp_avg"),
        StateSlot::elements("exp_avg_sq"),
        StateSlot::steps(),
        StateSlot::elements("max_exp_avg_sq").only_with("amsgrad"),
    ])
    .refuses(|group| group.names().any(|name| name == "refused").then(|| "no `refused`".to_owned()));

fn by_hand(group: &ParamGroup) -> Result<()> {
    let beta1 = group.get("beta1")?;
    let beta2 = group.get("beta2")?;
    for mut update in group.updates() {
        let _ = update.parameter.f_mul_scalar_(1.0 - group.lr * group.weight_decay)?;
        let [mean, square, step, rest @ ..] = &mut update.state[..] else { unreachable!() };
        let _ = step.f_add_scalar_(1.0)?;
        let step = step.double_value(&[]);
        let _ = mean.f_lerp_(&update.grad, 1.0 - beta1)?;
        let _ = square.f_lerp_(&update.grad.f_square()?, 1.0 - beta2)?;
        if let [max] = rest {
            max.f_copy_(&max.f_maximum(square)?)?;
        }
        let root = rest.first().unwrap_or(square).f_sqrt()? / (1.0 - beta2.powf(step)).sqrt();
        let rate = group.lr / (1.0 - beta1.powf(step));
        let _ = update.parameter.f_sub_(&(&*mean / (root + group.get("eps")?) * rate))?;
    }
    Ok(())
}

#[test]
fn custom_algorithms_support_the_features_of_built_in_optimizers() {
    let groups = || [("fc1.*", Group::new().lr(2e-2)), ("*.bias", Group::new().weight_decay(0.3))];
    let add = |builder: Builder| builder.hook(HyperparameterSchedule::values("beta1", Constant::new(0.8)));
    for amsgrad in [false, true] {
        let mut own =
            Custom::new(&BY_HAND, 1e-2).weight_decay(0.01).set("amsgrad", f64::from(u8::from(amsgrad)));
        let mut built_in = AdamW::new(1e-2).weight_decay(0.01).amsgrad(amsgrad);
        for (pattern, group) in groups() {
            own = own.group(pattern, group);
        }
        for (pattern, group) in groups() {
            built_in = built_in.group(pattern, group);
        }
        let own = own.layer_decay(0.5, ["fc2.*"]);
        let built_in = built_in.layer_decay(0.5, ["fc2.*"]);
        let mut own = add(builder(Kind::Float, own)).build().unwrap();
        let mut built_in = add(builder(Kind::Float, built_in)).build().unwrap();
        for trainer in [&mut own, &mut built_in] {
            train_steps(trainer, 40);
        }
        for (one, other) in own.vars().iter().zip(built_in.vars().iter()) {
            let off = (&one.tensor - &other.tensor).abs().max().double_value(&[]);
            assert!(off < 1e-4, "{} is off by {off}", one.name);
        }
        let names = |trainer: &Trainer<Net>| -> Vec<String> {
            trainer.optimizer().unwrap().state().into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&own), names(&built_in));
        let settings = group_of(&mut own, "fc1.weight").settings().map(|(name, _)| name.to_owned());
        assert!(settings.eq(["lr", "weight_decay", "frozen", "beta1", "beta2", "eps", "amsgrad"]));
    }
    let mistakes =
        builder(Kind::Float, Custom::new(&BY_HAND, 1e-2).set("beta3", 0.5).set("beta2", 2.0)).build();
    let mistakes = mistakes.unwrap_err().to_string();
    assert!(mistakes.contains("AdamWByHand has no hyperparameter `beta3`"), "{mistakes}");
    assert!(mistakes.contains("the optimizer's `beta2` is 2: expected at least 0 and below 1"), "{mistakes}");
}
