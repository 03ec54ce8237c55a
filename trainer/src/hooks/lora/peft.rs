//! Adapters in the file formats of Python's `peft`: `adapter_model.safetensors` and
//! `adapter_config.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trainer_formats::shortened;

use super::{A, Adapter, B, Lora};
use crate::checkpoint::{read_tensors, write_tensors};
use crate::io::files::{create_folders, is_file, read_text, replace_file};
use crate::modules::Patterns;
use crate::prelude::*;
use crate::{NewVariables, Vars};

const CONFIG: &str = "adapter_config.json";
const MODEL: &str = "adapter_model.safetensors";
/// The file that old versions of `peft` write, with `torch.save`.
const OLD_MODEL: &str = "adapter_model.bin";
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
    /// How the adapters were initialized. Some ways change the weights of the model too, whenever
    /// `peft` loads the adapter.
    #[serde(default = "is_true")]
    init_lora_weights: Value,
    /// All other fields of the file.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// The fields of `peft`'s `LoraConfig` that do not affect what saved adapters compute: where they
/// came from, which modules they were for (their names are in the file of weights), and the details
/// of an initialization, which `init_lora_weights` names.
const HARMLESS: [&str; 13] = [
    "auto_mapping",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];

/// The fields for variants of LoRA that this crate does not support. They must be absent, `false`,
/// `null` or empty, and so must fields that are not listed here.
const VARIANTS: [&str; 16] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "ensure_weight_tying",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "monteclora_config",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
];

/// The values of `init_lora_weights`, besides `true` and `false`, with which `peft` leaves the
/// weights of the model as they are, when it creates an adapter and when it loads one. With
/// `pissa`, `pissa_niter_…`, `olora`, `corda`, `loftq` and `lora_ga` it does not.
const INITIALIZATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

fn is_true() -> Value {
    Value::Bool(true)
}

impl Config {
    /// Returns an error if the adapters use a feature that [`Lora`] does not support.
    fn check(&self) -> Result<()> {
        let refuse = |what: String| {
            Err(Error::msg(format!(
                "{what}, which `Lora` does not support: merge it into its model in Python with `merge_and_unload()` of `peft`, \
                 and load the weights of the merged model"
            )))
        };
        if self.peft_type != "LORA" {
            return refuse(format!("its `peft_type` is `{}`", shortened(&self.peft_type)));
        }
        if self.bias != "none" {
            return refuse(format!("its `bias` is `{}`", shortened(&self.bias)));
        }
        let is_known = match &self.init_lora_weights {
            Value::Bool(_) | Value::Null => true,
            Value::String(name) => INITIALIZATIONS.contains(&name.as_str()),
            _ => false,
        };
        if !is_known {
            let value = shortened(&self.init_lora_weights.to_string());
            return refuse(format!("its `init_lora_weights` is {value}"));
        }
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        let used =
            self.others.iter().find(|(field, value)| !HARMLESS.contains(&field.as_str()) && !is_off(value));
        match used {
            Some((field, value)) => {
                let is_variant = VARIANTS.contains(&field.as_str());
                let unknown = if is_variant { "" } else { " (a field that this crate does not know)" };
                refuse(format!("it has `{}` = {}{unknown}", shortened(field), shortened(&value.to_string())))
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
    /// this hook does not support, such as DoRA, or PiSSA and OLoRA, which change the weights of
    /// the model too. A field of the configuration that is not known must be off.
    #[doc(alias("PeftModel", "from_pretrained"))]
    pub fn from_peft(folder: impl AsRef<Path>, prefix: &str) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join(CONFIG);
        let config: Config =
            serde_json::from_str(&read_text(&path)?).map_err(|error| Error::in_file(&path, error))?;
        config.check().map_err(|error| Error::in_file(&path, error))?;
        let path = folder.join(MODEL);
        if !is_file(&path) && is_file(&folder.join(OLD_MODEL)) {
            return Err(Error::in_file(
                folder,
                format!(
                    "it has `{OLD_MODEL}` of an old version of `peft`, expected `{MODEL}`: load it with `PeftModel.from_pretrained` in \
                     Python, and save it again with `save_pretrained`"
                ),
            ));
        }
        let saved = read_tensors(&path)?;
        let pretrained =
            Pretrained::of(saved, folder, prefix, &config).map_err(|error| Error::in_file(&path, error))?;
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
            init_lora_weights: is_true(),
            others: BTreeMap::new(),
        };
        let text = serde_json::to_string_pretty(&config).map_err(|error| Error::msg(error.to_string()))?;
        let folder = folder.as_ref();
        create_folders(folder)?;
        write_tensors(&folder.join(MODEL), &named)?;
        replace_file(&folder.join(CONFIG), check_config, |file| Ok(file.write(text.as_bytes())?))?;
        Self::note_written(vars, folder, &named)
    }
}

/// Returns an error unless the file is an adapter configuration.
fn check_config(path: &Path) -> Result<()> {
    let is_one =
        serde_json::from_str::<Value>(&read_text(path)?).is_ok_and(|json| json.get("peft_type").is_some());
    if is_one {
        Ok(())
    } else {
        Err(Error::in_file(path, "it is not an adapter configuration: move it elsewhere"))
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, Value, json};

    use super::*;

    /// The fields of `LoraConfig` in `peft` 0.19 and 0.21, and their defaults. `make interop`
    /// compares them with the installed version.
    const FIELDS: &str =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference/peft_config.json"));

    fn fields() -> Map<String, Value> {
        serde_json::from_str(FIELDS).unwrap()
    }

    fn check(fields: &Map<String, Value>) -> Result<()> {
        serde_json::from_value::<Config>(fields.clone().into()).unwrap().check()
    }

    /// The fields that [`Config`] has.
    fn handled() -> BTreeSet<String> {
        let config: Config = serde_json::from_value(fields().into()).unwrap();
        let handled = Config { others: BTreeMap::new(), ..config };
        serde_json::to_value(handled).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn every_field_of_peft_is_handled_or_harmless_or_refused() {
        let handled = handled();
        for field in fields().keys() {
            let lists = [handled.contains(field), HARMLESS.contains(&&**field), VARIANTS.contains(&&**field)];
            assert_eq!(lists.iter().filter(|is_in| **is_in).count(), 1, "{field}: {lists:?}");
        }
        check(&fields()).unwrap();
        for field in HARMLESS {
            let mut changed = fields();
            changed.insert(field.to_owned(), json!({ "x": 1 }));
            check(&changed).unwrap();
        }
        for field in VARIANTS.into_iter().chain(["a_field_of_the_future"]) {
            for value in [json!(true), json!(7), json!("x"), json!([1]), json!({ "x": 1 })] {
                let mut changed = fields();
                changed.insert(field.to_owned(), value);
                let text = check(&changed).unwrap_err().to_string();
                assert!(text.starts_with(&format!("it has `{field}` = ")), "{text}");
                assert!(text.contains("`Lora` does not support: merge it"), "{text}");
            }
        }
    }

    #[test]
    fn an_initialization_that_may_change_the_model_is_refused() {
        let with = |value: Value| {
            let mut changed = fields();
            changed.insert("init_lora_weights".into(), value);
            check(&changed)
        };
        for known in
            [json!(true), json!(false), json!(null), json!("gaussian"), json!("eva"), json!("orthogonal")]
        {
            with(known).unwrap();
        }
        for other in
            ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "mica", "PiSSA", "of the future"]
        {
            let text = with(other.into()).unwrap_err().to_string();
            assert!(text.starts_with(&format!("its `init_lora_weights` is \"{other}\", which")), "{text}");
        }
    }
}
