//! Adapters in the file formats of Python's `peft`: `adapter_model.safetensors` and
//! `adapter_config.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{A, Adapter, B, Lora};
use crate::checkpoint::tensors;
use crate::error::shortened;
use crate::io::files::{create_folders, in_file, read_text, replace_file};
use crate::io::tensor_format;
use crate::modules::Patterns;
use crate::prelude::*;
use crate::{NewVariables, Vars};

const CONFIG: &str = "adapter_config.json";
const MODEL: &str = "adapter_model.safetensors";
/// The prefix that `peft` adds to the name of each variable.
const PREFIX: &str = "base_model.model.";

/// The fields of `adapter_config.json` that this crate writes or that affect what the adapters
/// compute.
#[derive(Debug, Deserialize, Serialize)]
struct Config {
    peft_type: String,
    task_type: Option<String>,
    base_model_name_or_path: Option<String>,
    inference_mode: bool,
    r: i64,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: Value,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    use_rslora: bool,
    bias: String,
    /// All other fields of the file.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// The fields for variants of LoRA that this crate does not support. They must be absent, `false`,
/// `null` or empty.
const VARIANTS: [&str; 10] = [
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
];

impl Config {
    /// Returns an error if the adapters use a feature that [`Lora`] does not support.
    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::msg(format!("{what}, which `Lora` does not support")));
        if self.peft_type != "LORA" {
            return refuse(format!("its `peft_type` is `{}`", shortened(&self.peft_type)));
        }
        if self.bias != "none" {
            return refuse(format!("its `bias` is `{}`", shortened(&self.bias)));
        }
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        let used = VARIANTS.iter().find(|field| self.others.get(**field).is_some_and(|value| !is_off(value)));
        match used {
            Some(field) => {
                refuse(format!("it has `{field}` = {}", shortened(&self.others[*field].to_string())))
            }
            None => Ok(()),
        }
    }
}

/// The adapters in a folder written by `peft` or [`Lora::save_peft`].
pub(super) struct Pretrained {
    /// The folder, for error messages.
    folder: String,
    /// Whether square weights are stored as `[in, out]`, which their shapes do not show.
    is_transposed: bool,
    adapters: BTreeMap<String, [Tensor; 2]>,
    /// The variables that do not belong to adapters, such as those of a new head.
    others: BTreeMap<String, Tensor>,
}

impl fmt::Debug for Pretrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pretrained").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Pretrained {
    /// Returns whether a module's weight is stored as `[in, out]`. `[first, second]` is the shape
    /// of the weight. Returns an error if the module has no adapter in the folder.
    pub(super) fn is_transposed(&self, module: &str, [first, second]: [i64; 2]) -> Result<bool> {
        let [a, b] = self.pair(module)?;
        let (inputs, outputs) = (a.size()[1], b.size()[0]);
        Ok(if first == second { self.is_transposed } else { [inputs, outputs] == [first, second] })
    }

    /// Returns a module's adapter. Returns an error if the module has no adapter, or if the shapes
    /// of the adapter do not match `rank`, `inputs` and `outputs`.
    pub(super) fn adapter(
        &self,
        module: &str,
        rank: i64,
        [inputs, outputs]: [i64; 2],
    ) -> Result<[Tensor; 2]> {
        let [a, b] = self.pair(module)?;
        if a.size() != [rank, inputs] || b.size() != [outputs, rank] {
            return Err(Error::msg(format!(
                "the adapter of `{module}` in {} has the shapes {:?} and {:?}: expected {:?} and {:?}",
                self.folder,
                a.size(),
                b.size(),
                [rank, inputs],
                [outputs, rank]
            )));
        }
        Ok([a.shallow_clone(), b.shallow_clone()])
    }

    fn pair(&self, module: &str) -> Result<&[Tensor; 2]> {
        self.adapters
            .get(module)
            .ok_or_else(|| Error::msg(format!("{} has no adapter of `{module}`", self.folder)))
    }

    /// Sets the variables that do not belong to adapters to their saved values.
    pub(super) fn load_others(&self, model: &NewVariables<'_>) -> Result<()> {
        let of_folder = |error: Error| Error::msg(format!("the adapter in {}: {error}", self.folder));
        self.others.iter().try_for_each(|(name, value)| model.set(name, value).map_err(of_folder))
    }
}

impl Lora {
    /// Reads adapters and their settings from a folder written by Python's `peft` or
    /// [`save_peft`](Lora::save_peft). The hook then continues to train them, or uses them in
    /// `predict`. `prefix` is the path of this model within the model that `peft` wraps, such as
    /// `"transformer"`, or empty if both models use the same names.
    ///
    /// The parameters of the modules that `peft` lists in `modules_to_save` are
    /// [trainable](Lora::trainable). They get their values from the folder, and keep these values
    /// when [`load_weights`](Trainer::load_weights) reads the pretrained model. Whether a weight is
    /// [transposed](Lora::transposed) follows from the shapes or, if it is square, from
    /// `fan_in_fan_out`.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or if the adapters are of a kind or variant that
    /// this hook does not support, such as DoRA.
    #[doc(alias("PeftModel", "from_pretrained"))]
    pub fn from_peft(folder: impl AsRef<Path>, prefix: &str) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join(CONFIG);
        let config: Config =
            serde_json::from_str(&read_text(&path)?).map_err(|error| in_file(&path, error))?;
        config.check().map_err(|error| in_file(&path, error))?;
        let path = folder.join(MODEL);
        let saved = tensor_format::from_bytes(&tensors::read(&path)?);
        let saved = saved.map_err(|error| in_file(&path, error))?;
        let pretrained =
            Pretrained::of(saved, folder, prefix, &config).map_err(|error| in_file(&path, error))?;
        let mut lora = Lora::new(pretrained.adapters.keys().cloned().collect::<Patterns>(), config.r);
        if !pretrained.others.is_empty() {
            lora.trainable = Some(pretrained.others.keys().cloned().collect());
        }
        lora.alpha = Some(config.lora_alpha);
        lora.dropout = config.lora_dropout;
        lora.rs_lora = config.use_rslora;
        lora.pretrained = Some(pretrained);
        Ok(lora)
    }

    /// Writes the adapters and the [trainable](Lora::trainable) parameters into a folder, in the
    /// format of Python's `peft`: `adapter_model.safetensors` and `adapter_config.json`. `prefix`
    /// has the same meaning as in [`from_peft`](Lora::from_peft). Existing files with these names
    /// are replaced if they have the same formats.
    ///
    /// ```no_run
    /// # use trainer::hooks::Lora;
    /// # use trainer::prelude::*;
    /// # fn save(trainer: &Trainer<impl Task>) -> Result<()> {
    /// trainer.hook::<Lora>()?.save_peft(trainer.vars(), "adapter", "")
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if `vars` are not the variables of the trainer with this hook, or if a file
    /// cannot be written.
    #[doc(alias = "save_pretrained")]
    pub fn save_peft(&self, vars: &Vars, folder: impl AsRef<Path>, prefix: &str) -> Result<()> {
        let dotted = dotted(prefix);
        let mut named = Vec::new();
        let mut targets = Vec::new();
        let mut is_transposed = false;
        for (module, Adapter { a, b, is_transposed: transposed }) in self.of(vars)? {
            targets.push(format!("{dotted}{module}"));
            named.push((format!("{PREFIX}{dotted}{module}{A}"), a.f_detach()?));
            named.push((format!("{PREFIX}{dotted}{module}{B}"), b.f_detach()?));
            is_transposed |= transposed;
        }
        let mut modules = Vec::new();
        let is_trainable = |name: &str| self.trainable.as_ref().is_some_and(|names| names.matches(name));
        for var in vars.parameters() {
            if super::adapted(&var.name).is_none() && is_trainable(&var.name) {
                let module = var.name.rsplit_once('.').map_or("", |(module, _)| module);
                modules.push(format!("{dotted}{module}"));
                named.push((format!("{PREFIX}{dotted}{}", var.name), var.tensor.f_detach()?));
            }
        }
        modules.dedup();
        let config = Config {
            peft_type: "LORA".into(),
            task_type: None,
            base_model_name_or_path: None,
            inference_mode: true,
            r: self.rank,
            lora_alpha: self.alpha_or_rank(),
            lora_dropout: self.dropout,
            target_modules: targets.into(),
            modules_to_save: (!modules.is_empty()).then_some(modules),
            fan_in_fan_out: is_transposed,
            use_rslora: self.rs_lora,
            bias: "none".into(),
            others: BTreeMap::new(),
        };
        let text = serde_json::to_string_pretty(&config).map_err(|error| Error::msg(error.to_string()))?;
        let folder = folder.as_ref();
        create_folders(folder)?;
        replace_file(&folder.join(MODEL), tensors::check_format, |file| {
            tensors::write(file, &named).map(drop)
        })?;
        replace_file(&folder.join(CONFIG), check_config, |file| Ok(file.write(text.as_bytes())?))?;
        Self::note_written(vars, folder, &named)
    }
}

/// Returns an error unless the file is an adapter configuration.
fn check_config(path: &Path) -> Result<()> {
    let is_one =
        serde_json::from_str::<Value>(&read_text(path)?).is_ok_and(|json| json.get("peft_type").is_some());
    if is_one { Ok(()) } else { Err(in_file(path, "it is not an adapter configuration: move it elsewhere")) }
}

fn dotted(prefix: &str) -> String {
    if prefix.is_empty() { String::new() } else { format!("{prefix}.") }
}

impl Pretrained {
    /// Splits the tensors of a file into adapters and other variables.
    fn of(saved: BTreeMap<String, Tensor>, folder: &Path, prefix: &str, config: &Config) -> Result<Self> {
        let start = format!("{PREFIX}{}", dotted(prefix));
        let mut halves: BTreeMap<String, [Option<Tensor>; 2]> = BTreeMap::new();
        let mut others = BTreeMap::new();
        for (name, tensor) in saved {
            let Some(own) = name.strip_prefix(&start) else {
                return Err(Error::msg(format!(
                    "its tensor `{}` does not begin with `{start}`: pass as `prefix` the path of this model within the model \
                     that `peft` wrapped",
                    shortened(&name)
                )));
            };
            let half = [A, B].iter().position(|half| own.ends_with(half));
            if let (Some(half), Some(module)) = (half, super::adapted(own)) {
                if tensor.dim() != 2 {
                    return Err(Error::msg(format!(
                        "its tensor `{}` has the shape {:?}: expected the adapter of a linear module",
                        shortened(&name),
                        tensor.size()
                    )));
                }
                halves.entry(module.to_owned()).or_default()[half] = Some(tensor);
            } else if own.contains("lora_") {
                return Err(Error::msg(format!(
                    "its tensor `{}` belongs to a variant of LoRA that `Lora` does not support",
                    shortened(&name)
                )));
            } else {
                others.insert(own.to_owned(), tensor);
            }
        }
        let mut adapters = BTreeMap::new();
        for (module, halves) in halves {
            let [Some(a), Some(b)] = halves else {
                return Err(Error::msg(format!(
                    "`{}` has only one of `lora_A` and `lora_B`",
                    shortened(&module)
                )));
            };
            adapters.insert(module, [a, b]);
        }
        if adapters.is_empty() {
            return Err(Error::msg("it has no adapter"));
        }
        let folder = folder.display().to_string();
        Ok(Pretrained { folder, is_transposed: config.fan_in_fan_out, adapters, others })
    }
}
