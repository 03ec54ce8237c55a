//! Low-rank adapters.

mod peft;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::peft::Pretrained;
use super::{is_positive, refused, stages};
use crate::checkpoint::{SettingList, Settings, write_tensors};
use crate::modules::{Patterns, all_names};
use crate::prelude::own::*;
use crate::{AddVariables, NewVariables, Vars, eprint_line};

/// Trains low-rank adapters instead of a model's own weights (Hu et al., *LoRA: Low-Rank Adaptation
/// of Large Language Models*, 2022), without changing the model. The hook adds
/// `alpha / rank · B A dropout(x)` to the output of each selected module, where `x` is the module's
/// input. `A` has the shape `[rank, in]`. `B`, which is initially zero, has the shape
/// `[out, rank]`.
///
/// Use this when the gradients and the optimizer state of all parameters do not fit into memory, or
/// when each of several tasks should have its own small file.
///
/// ```
/// use trainer::hooks::Lora;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// let vs = nn::VarStore::new(Device::Cpu);
/// let root = vs.root();
/// let linear = |name: &str, inputs, outputs| {
///     nn::linear(&root / name, inputs, outputs, Default::default()).named(name)
/// };
/// let net = nn::seq().add(linear("q_proj", 8, 8)).add_fn(Tensor::relu).add(linear("head", 8, 2));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3))
///     .hook(Lora::new("*q_proj", 4).alpha(8.0).trainable("head.*"))
///     .seed(1)
///     .build()?;
/// let trained = trainer.vars().parameters().filter(|var| var.tensor.requires_grad());
/// let names: Vec<_> = trained.map(|var| var.name.clone()).collect();
/// assert_eq!(names, ["head.bias", "head.weight", "q_proj.lora_A.weight", "q_proj.lora_B.weight"]);
/// # Ok(())
/// # }
/// ```
///
/// When the trainer is built, the hook adds the parameters `<module>.lora_A.weight` and
/// `<module>.lora_B.weight` to the model, in their own group, and freezes the model's existing
/// parameters, except those that are [trainable](Lora::trainable). Frozen parameters get no
/// gradient, and the optimizer has no state for them. Pretrained weights are loaded in the usual
/// way: [`load_weights`](Trainer::load_weights) accepts a file without adapters. Checkpoints
/// contain the whole model, and [`save_weights`](Trainer::save_weights) writes all of it;
/// [`save_peft`](Lora::save_peft) writes only the adapters and the trainable parameters, for this
/// crate and for Python's `peft`, and [`save_merged`](Lora::save_merged) writes a model without
/// adapters.
///
/// The modules must be linear. Each must have a [name](crate::modules), which is also the path of
/// its variables. The weight of a module has the shape `[out, in]`, or `[in, out]` if the module is
/// [transposed](Lora::transposed). The input has the shape `[…, in]`, and the output the shape
/// `[…, out]`. The adapters have the dtype of the weight, or `f32` if the weight is bf16 or fp16.
/// With several processes, all ranks begin with the adapters of rank 0.
///
/// `build` returns an error if a pattern matches no linear module, if it matches a module that is
/// not linear or the weight of an unnamed module, if a module already has the adapters of another
/// `Lora`, or if the rank is larger than `in` or `out`. If a call of a matched module shows that
/// the module is not linear, the run ends with an error.
#[doc(alias("peft", "LoraConfig", "adapter"))]
#[derive(Debug)]
pub struct Lora {
    modules: Patterns,
    rank: i64,
    alpha: Option<f64>,
    dropout: f64,
    rs_lora: bool,
    transposed: Option<Patterns>,
    trainable: Option<Patterns>,
    /// The adapters that were read from a folder.
    pretrained: Option<Pretrained>,
    /// The adapters by module.
    adapters: BTreeMap<String, Adapter>,
}

/// The adapter of one module.
#[derive(Debug)]
struct Adapter {
    a: Tensor,
    b: Tensor,
    /// Whether the module's weight has the shape `[in, out]`.
    is_transposed: bool,
}

const A: &str = ".lora_A.weight";
const B: &str = ".lora_B.weight";

/// Returns the name of the module whose adapter contains the variable `name`, or `None` if the
/// variable does not belong to an adapter.
fn adapted(name: &str) -> Option<&str> {
    name.strip_suffix(A).or_else(|| name.strip_suffix(B))
}

impl Lora {
    /// Adapts the modules with these names, such as `["*.q_proj", "*.v_proj"]`, with matrices of
    /// this rank, at least 1.
    #[doc(alias("target_modules", "r"))]
    #[must_use]
    pub fn new(modules: impl Into<Patterns>, rank: i64) -> Self {
        Lora {
            modules: modules.into(),
            rank,
            alpha: None,
            dropout: 0.0,
            rs_lora: false,
            transposed: None,
            trainable: None,
            pretrained: None,
            adapters: BTreeMap::new(),
        }
    }

    /// Sets `alpha`, above 0, in the factor `alpha / rank` by which the adapters are multiplied.
    /// Defaults to the rank.
    #[doc(alias = "lora_alpha")]
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = Some(alpha);
        self
    }

    /// Sets the dropout probability for each element of the input of `A` in training, at least 0
    /// and below 1. Defaults to 0.
    #[doc(alias = "lora_dropout")]
    #[must_use]
    pub fn dropout(mut self, dropout: f64) -> Self {
        self.dropout = dropout;
        self
    }

    /// Whether to multiply the adapters by `alpha / √rank` instead of `alpha / rank`, so that a
    /// higher rank does not learn more slowly (Kalajdzievski, *A Rank Stabilization Scaling Factor
    /// for Fine-Tuning with LoRA*, 2023). Defaults to `false`.
    #[doc(alias = "use_rslora")]
    #[must_use]
    pub fn rs_lora(mut self, rs_lora: bool) -> Self {
        self.rs_lora = rs_lora;
        self
    }

    /// Declares that the weights of these modules have the shape `[in, out]`, as in the `Conv1D`
    /// layers of GPT-2. Defaults to none.
    #[doc(alias = "fan_in_fan_out")]
    #[must_use]
    pub fn transposed(mut self, modules: impl Into<Patterns>) -> Self {
        self.transposed = Some(modules.into());
        self
    }

    /// Also trains the parameters with these names, such as those of a new head, `"head.*"`. They
    /// are saved with the adapters. Defaults to none.
    #[doc(alias = "modules_to_save")]
    #[must_use]
    pub fn trainable(mut self, parameters: impl Into<Patterns>) -> Self {
        self.trainable = Some(parameters.into());
        self
    }

    /// The factor by which the adapters are multiplied: `alpha / rank`, or `alpha / √rank` with
    /// [`rs_lora`](Lora::rs_lora).
    #[must_use]
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha_or_rank() / if self.rs_lora { rank.sqrt() } else { rank }
    }

    fn alpha_or_rank(&self) -> f64 {
        self.alpha.unwrap_or(self.rank as f64)
    }

    /// Adds the adapters to the weights of their modules, and sets each `B` to zero, so that
    /// outputs stay the same except for rounding. Training can continue from there. `vars` are the
    /// variables of the trainer, [`trainer.vars()`](Trainer::vars) or [`cx.vars()`](Cx::vars).
    ///
    /// # Errors
    ///
    /// Returns an error if `vars` are not the variables of the trainer with this hook, or if
    /// libtorch fails.
    #[doc(alias = "merge_and_unload")]
    pub fn merge(&self, vars: &Vars) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        if vars.are_evaluated() {
            return Err(Error::msg(
                "`merge` changes the variables of the model, and not what evaluation uses: pass `trainer.vars()`",
            ));
        }
        for (module, adapter) in self.of(vars)? {
            let mut weight = vars.get(&format!("{module}.weight"))?;
            let merged = self.merged(&adapter, &weight)?;
            weight.f_copy_(&merged)?;
            let _ = adapter.b.shallow_clone().f_zero_()?;
        }
        Ok(())
    }

    /// Atomically writes the weights of an equivalent model without `Lora` as a `safetensors` file:
    /// the adapters are added to the weights of their modules, but are not written themselves. The
    /// variables do not change. `vars` are the variables of the trainer: if a hook averages
    /// weights, [`trainer.eval_vars()`](Trainer::eval_vars) to write the averages, or
    /// [`trainer.vars()`](Trainer::vars) to write the live weights.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - `vars` are not the variables of the trainer with this hook;
    /// - `vars` contain adapters of another `Lora` that are not [merged](Lora::merge);
    /// - `path` exists but is not a `safetensors` file;
    /// - `path` cannot be written.
    pub fn save_merged(&self, vars: &Vars, path: impl AsRef<Path>) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let of_vars = self.of(vars)?;
        let own: BTreeMap<String, &Adapter> =
            of_vars.iter().map(|(module, adapter)| (format!("{module}.weight"), adapter)).collect();
        let mut named = Vec::new();
        for var in vars.iter() {
            let is_other = |module: &str| !self.adapters.contains_key(module);
            if let Some(module) = adapted(&var.name) {
                if is_other(module)
                    && var.name.ends_with(B)
                    && var.tensor.f_count_nonzero(None)?.int64_value(&[]) != 0
                {
                    return Err(Error::msg(format!(
                        "the module `{module}` has an adapter of another `Lora`: call `merge` on that `Lora` first"
                    )));
                }
                continue;
            }
            let value = match own.get(&var.name) {
                Some(adapter) => self.merged(adapter, &var.tensor)?,
                None => var.tensor.f_detach()?,
            };
            named.push((var.name.clone(), value));
        }
        let path = path.as_ref();
        write_tensors(path, &named)?;
        Self::note_written(vars, path, &named)
    }

    /// Returns the adapters by module.
    ///
    /// # Errors
    ///
    /// Returns an error if `vars` do not contain the adapters.
    fn of(&self, vars: &Vars) -> Result<Vec<(&str, Adapter)>> {
        let adapters = self.adapters.iter().map(|(module, own)| {
            let [a, b] = [(A, &own.a), (B, &own.b)].map(|(suffix, own)| {
                let found = vars.get(&format!("{module}{suffix}")).ok()?;
                (vars.are_evaluated() || std::ptr::eq(found.data_ptr(), own.data_ptr())).then_some(found)
            });
            Some((module.as_str(), Adapter { a: a?, b: b?, is_transposed: own.is_transposed }))
        });
        adapters.collect::<Option<Vec<_>>>().filter(|adapters| !adapters.is_empty()).ok_or_else(|| {
            Error::msg(
                "these are not the variables of the trainer that this `Lora` belongs to: call this method on \
                 `trainer.hook::<Lora>()?`, with `trainer.vars()` or `&trainer.eval_vars()?`",
            )
        })
    }

    /// Prints what is to be known about the values that were written: that evaluation uses others,
    /// or that they are not finite.
    fn note_written(vars: &Vars, path: &Path, named: &[(String, Tensor)]) -> Result<()> {
        if vars.share().rank > 0 {
            return Ok(());
        }
        if vars.differ_from_evaluated() {
            eprint_line(format!(
                "{} has the live weights, but evaluation uses averages: to write these, pass `&trainer.eval_vars()?`",
                path.display()
            ));
        }
        if let Some(name) = not_finite(named)? {
            eprint_line(format!(
                "warning: {} has NaN or infinite values in `{name}`: return to an earlier checkpoint",
                path.display()
            ));
        }
        Ok(())
    }

    /// Returns a weight with its adapter added, in the dtype of the weight.
    fn merged(&self, adapter: &Adapter, weight: &Tensor) -> Result<Tensor> {
        let exact = |tensor: &Tensor| tensor.f_detach()?.f_to_kind(Kind::Double);
        let update = exact(&adapter.b)?.f_matmul(&exact(&adapter.a)?)?.f_mul_scalar(self.scale())?;
        let update = if adapter.is_transposed { update.f_tr()? } else { update };
        Ok(exact(weight)?.f_add(&update)?.f_to_kind(weight.kind())?)
    }

    /// Returns the modules to adapt, each with its weight, and adds a description of each mistake
    /// to `mistakes`.
    fn targets(&self, vars: &Vars, mistakes: &mut Vec<String>) -> Vec<(String, Tensor)> {
        let names = all_names();
        let named: BTreeSet<&str> = names.iter().map(|name| &**name).collect();
        // A pattern that matches no module at all is reported as for any hook with `of`.
        let known: Vec<_> =
            self.modules.iter().filter(|pattern| named.iter().any(|name| pattern.matches(name))).collect();
        let mut targets = Vec::new();
        for var in vars.iter() {
            let Some(module) = var.name.strip_suffix(".weight") else { continue };
            if adapted(&var.name).is_some() || !self.modules.matches(module) {
                continue;
            }
            let size = var.tensor.size();
            if vars.get(&format!("{module}{A}")).is_ok() {
                mistakes.push(format!(
                    "`{module}` already has the adapters of another `Lora`: let the patterns of only one match it"
                ));
            } else if !named.contains(module) {
                if self.modules.iter().len() == 0 || known.iter().any(|pattern| pattern.matches(module)) {
                    mistakes.push(format!(
                        "the weight `{}` matches, but no module has the name `{module}`: name it with `.named(…)`, or \
                         write patterns that match only named modules",
                        var.name
                    ));
                }
            } else if size.len() != 2 || !var.tensor.is_floating_point() {
                mistakes.push(format!(
                    "`{module}` has a weight of dtype {:?} and shape {size:?}: expected a linear module, whose weight is \
                     `[out, in]`; write patterns that match only linear modules",
                    var.tensor.kind()
                ));
            } else if self.rank > size[0].min(size[1]) {
                mistakes.push(format!(
                    "the rank {} is larger than a dimension of the weight of `{module}`, which is {size:?}: expected at most {}",
                    self.rank,
                    size[0].min(size[1])
                ));
            } else {
                targets.push((module.to_owned(), var.tensor.shallow_clone()));
            }
        }
        let weights = || vars.iter().filter_map(|var| var.name.strip_suffix(".weight"));
        for pattern in known.iter().filter(|pattern| !pattern.is_optional()) {
            if !weights().any(|module| pattern.matches(module)) {
                mistakes.push(format!(
                    "`{pattern}` matches no module of the task with a weight{}: a module's name must be the path of \
                     its variables",
                    pattern.did_you_mean(weights())
                ));
            }
        }
        targets
    }

    /// Adds to `mistakes` a description of each pattern that matches none of `names`.
    fn check_names(
        patterns: Option<&Patterns>,
        call: &str,
        what: &str,
        names: &[&str],
        mistakes: &mut Vec<String>,
    ) {
        for pattern in patterns.into_iter().flat_map(Patterns::iter).filter(|pattern| !pattern.is_optional())
        {
            if !names.iter().any(|name| pattern.matches(name)) {
                mistakes.push(format!(
                    "`.{call}(\"{pattern}\")` matches no {what}{}",
                    pattern.did_you_mean(names.iter().copied())
                ));
            }
        }
    }

    /// Returns the initial values of a module's adapter. `A` is uniformly distributed between
    /// `-1 / √inputs` and `1 / √inputs`, as in PyTorch's `kaiming_uniform_` with `a = √5`. `B` is
    /// zero.
    fn initial(&self, module: &str, seed: u64, [inputs, outputs]: [i64; 2]) -> [Tensor; 2] {
        // The values depend on the seed and the name, but not on which other modules have adapters.
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(module.as_bytes());
        let mut random = ChaCha8Rng::from_seed(*hasher.finalize().as_bytes());
        let bound = (inputs as f64).sqrt().recip();
        let values: Vec<f64> = (0..self.rank * inputs).map(|_| random.gen_range(-bound..bound)).collect();
        let a = Tensor::from_slice(&values).reshape([self.rank, inputs]);
        [a, Tensor::zeros([outputs, self.rank], (Kind::Double, Device::Cpu))]
    }
}

impl AddVariables for Lora {
    /// Adds the adapters, and freezes the other parameters.
    fn add_variables(&mut self, model: &NewVariables<'_>) -> Result<()> {
        let vars = model.vars();
        let mut mistakes = Vec::new();
        let targets = self.targets(&vars, &mut mistakes);
        let modules: Vec<&str> = targets.iter().map(|(module, _)| module.as_str()).collect();
        let what = "module that it adapts";
        Self::check_names(self.transposed.as_ref(), "transposed", what, &modules, &mut mistakes);
        let parameters = || vars.parameters().filter(|var| adapted(&var.name).is_none());
        let names: Vec<&str> = parameters().map(|var| var.name.as_str()).collect();
        Self::check_names(self.trainable.as_ref(), "trainable", "parameter", &names, &mut mistakes);
        if !mistakes.is_empty() {
            return Err(Error::msg(mistakes.join("; ")));
        }
        let mut seed = None;
        let mut adapters = BTreeMap::new();
        let free_group = vars.parameters().map(|var| var.group + 1).max().unwrap_or(0);
        let mut values = Vec::new();
        for (module, weight) in targets {
            let [first, second] = weight.size2()?.into();
            let is_transposed = match &self.pretrained {
                None => self.transposed.as_ref().is_some_and(|patterns| patterns.matches(&module)),
                Some(pretrained) => pretrained.is_transposed(&module, [first, second])?,
            };
            let [inputs, outputs] = if is_transposed { [first, second] } else { [second, first] };
            let [a, b] = match &self.pretrained {
                Some(pretrained) => pretrained.adapter(&module, self.rank, [inputs, outputs])?,
                None => {
                    let drawn =
                        || Tensor::randint(i64::MAX, [1], (Kind::Int64, Device::Cpu)).int64_value(&[0]);
                    let seed =
                        *seed.get_or_insert_with(|| model.seed().unwrap_or_else(|| drawn().cast_unsigned()));
                    self.initial(&module, seed, [inputs, outputs])
                }
            };
            let kind = if weight.kind() == Kind::Double { Kind::Double } else { Kind::Float };
            values.push((module, [a.f_to_kind(kind)?, b.f_to_kind(kind)?], is_transposed));
        }
        if let Some(pretrained) = &self.pretrained {
            pretrained.load_others(model)?;
        }
        // If the model already has adapters, their hook has frozen the other parameters, except
        // those that it trains.
        if vars.iter().all(|var| adapted(&var.name).is_none()) {
            for var in parameters() {
                let _ = var.tensor.f_set_requires_grad(false)?;
            }
        }
        if let Some(trainable) = &self.trainable {
            for var in parameters().filter(|var| trainable.matches(&var.name)) {
                let _ = var.tensor.f_set_requires_grad(true)?;
                model.set_group(&var.name, free_group)?;
            }
        }
        for (module, [a, b], is_transposed) in values {
            let a = model.add_parameter(&format!("{module}{A}"), &a, free_group)?;
            let b = model.add_parameter(&format!("{module}{B}"), &b, free_group)?;
            adapters.insert(module, Adapter { a, b, is_transposed });
        }
        self.adapters = adapters;
        Ok(())
    }
}

#[hook(in = stages::Freezing, settings, variables, trial)]
impl Lora {
    /// Adds the output of the adapter to the output of its module.
    #[hook(of = self.modules)]
    fn after_module_forward(&mut self, cx: &mut Cx<AfterModuleForward>) -> Result<()> {
        let Some(Adapter { a, b, .. }) = self.adapters.get(cx.module()) else {
            return Err(Error::msg(format!(
                "`{}` matches a pattern of `Lora`, but the task has no weight `{0}.weight`: expected a linear module; write \
                 patterns that match only linear modules",
                cx.module()
            )));
        };
        let (input, output) = (cx.input(), cx.output());
        let last = |tensor: &Tensor| tensor.size().last().copied();
        let expected = [a.size()[1], b.size()[0]];
        if !input.is_floating_point() || [last(input), last(output)] != expected.map(Some) {
            let found = |tensor: &Tensor| format!("{:?} of shape {:?}", tensor.kind(), tensor.size());
            return Err(Error::msg(format!(
                "`{}` maps {} to {}, but its weight has {} inputs and {} outputs: expected a linear module; if its weight is \
                 `[in, out]`, add `.transposed(\"{0}\")`",
                cx.module(),
                found(input),
                found(output),
                expected[0],
                expected[1]
            )));
        }
        let mut hidden = input.f_to_kind(a.kind())?;
        if self.dropout > 0.0 && cx.phase() == Phase::Train {
            hidden = hidden.f_dropout(self.dropout, true)?;
        }
        let update = hidden.f_linear::<Tensor>(a, None)?.f_linear::<Tensor>(b, None)?;
        let output = output.f_add(&update.f_mul_scalar(self.scale())?)?.f_to_kind(output.kind())?;
        cx.set_output(output)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Lora {
    fn settings(&self) -> SettingList {
        let Lora {
            modules,
            rank,
            alpha: _,
            dropout,
            rs_lora,
            transposed,
            trainable,
            pretrained: _,
            adapters: _,
        } = self;
        SettingList::new()
            .with("modules", modules)
            .with("rank", rank)
            .with("alpha", self.alpha_or_rank())
            .with("dropout", dropout)
            .with("rs_lora", rs_lora)
            .with_optional("transposed", transposed.as_ref())
            .with_optional("trainable", trainable.as_ref())
    }

    fn mistakes(&self) -> Vec<String> {
        let (rank, alpha, dropout) = (self.rank, self.alpha_or_rank(), self.dropout);
        refused([
            (rank < 1, format!("`Lora::new(…, {rank})`: expected a rank of at least 1")),
            // The alpha defaults to the rank.
            (
                rank >= 1 && !is_positive(alpha),
                format!("`.alpha({alpha:?})`: expected a finite number above 0"),
            ),
            (
                !(0.0..1.0).contains(&dropout),
                format!("`.dropout({dropout:?})`: expected at least 0.0 and below 1.0"),
            ),
        ])
    }
}

/// Returns the name of the first tensor with NaN or infinite values.
fn not_finite(named: &[(String, Tensor)]) -> Result<Option<&str>> {
    for (name, value) in named.iter().filter(|(_, value)| value.is_floating_point()) {
        let kind = if value.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        if value.f_to_kind(kind)?.f_isfinite()?.f_all()?.int64_value(&[]) == 0 {
            return Ok(Some(name));
        }
    }
    Ok(None)
}
