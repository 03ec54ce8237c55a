//! Weights files that other programs can read and write: `safetensors` files, and PyTorch's
//! `torch.save` files, which are only read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use super::files::{AVERAGES, MANIFEST, MODEL};
use super::rename::Rules;
use super::{NamedTensors, pt, tensors};
use crate::error::{Error, Result, nearest, shortened};
use crate::io::files::{Links, entries, in_file, is_file, name_of, open};
use crate::io::format::Format;
use crate::io::tensor_format::Encoded;
use crate::model::added::Added;
use crate::model::vars::Vars;

/// Options for loading weights from a file or a checkpoint into a task:
/// [`Trainer::load_weights`](crate::Trainer::load_weights).
///
/// If the layers have the same names as in PyTorch, the variables have the same names as in its
/// `state_dict`: `fc1.weight`, `bn.running_mean`. PyTorch's counters `num_batches_tracked`, which
/// tch does not have, are skipped. Only tensors that are loaded are read, so an entry of a dtype or
/// layout that is not supported, such as float8 or sparse, is an error only if it is loaded.
///
/// ```
/// use trainer::checkpoint::LoadWeights;
///
/// // A Lightning checkpoint of a model in `DistributedDataParallel`, with a different classifier.
/// let how = LoadWeights::new()
///     .section("state_dict")
///     .rename_pattern("module.*", "*")
///     .rename_pattern("*.gamma", "*.weight")
///     .skip("classifier.*")
///     .partial(true);
/// ```
#[derive(Default)]
pub struct LoadWeights<'a> {
    pub(super) section: Vec<String>,
    pub(super) rules: Rules<'a>,
    pub(super) partial: bool,
    pub(super) skip_mismatched: bool,
}

impl<'a> LoadWeights<'a> {
    /// Creates options that load every variable of the task under its own name.
    #[must_use]
    pub fn new() -> Self {
        LoadWeights::default()
    }

    /// Selects the state dict under this key of a `.pt` file, such as `state_dict` in Lightning
    /// checkpoints. A second call selects a key within the first, and a number an item of a `list`.
    /// Setting a key for any other file is an error. Defaults to the outermost `dict`.
    #[must_use]
    pub fn section(mut self, key: impl Into<String>) -> Self {
        self.section.push(key.into());
        self
    }

    /// Maps names in the file to names in the task; `None` skips a tensor. `rename`,
    /// `rename_pattern` and `skip` are applied in the order in which they were added, each to the
    /// names that the previous ones returned.
    #[must_use]
    pub fn rename(mut self, rename: impl Fn(&str) -> Option<String> + 'a) -> Self {
        self.rules.add_function(rename);
        self
    }

    /// Renames the tensors whose names match a pattern. Each `*` matches any characters, as few as
    /// possible; all other characters are literal, including `?`. Each `*` of the new name inserts
    /// the text that the `*` at the same position matched: `("module.*", "*")` removes a prefix,
    /// `("*.gamma", "*.weight")` replaces a suffix. It is an error if a pattern matches no name, or
    /// if a new name has more `*` than its pattern.
    #[must_use]
    pub fn rename_pattern(mut self, pattern: impl Into<String>, name: impl Into<String>) -> Self {
        self.rules.add_pattern(pattern.into(), name.into());
        self
    }

    /// Skips the tensors in the file whose names match a pattern, in which `*` matches any
    /// characters and `?` exactly one. A pattern that matches no name is an error.
    #[must_use]
    pub fn skip(mut self, pattern: impl Into<String>) -> Self {
        self.rules.add_skip(pattern.into());
        self
    }

    /// Whether names may be missing from the file or unexpected in it. If `true`, variables that
    /// are missing from the file keep their values. [`Loaded`] lists both kinds of names. Defaults
    /// to `false`.
    #[must_use]
    pub fn partial(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }

    /// Whether variables that have a different shape in the file keep their values, for example a
    /// classifier with a different number of classes. [`Loaded`] lists them. Defaults to `false`.
    #[must_use]
    pub fn skip_mismatched(mut self, skip: bool) -> Self {
        self.skip_mismatched = skip;
        self
    }
}

impl fmt::Debug for LoadWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadWeights").field("partial", &self.partial).finish_non_exhaustive()
    }
}

/// The result of loading weights.
///
/// ```
/// use trainer::checkpoint::LoadWeights;
/// # use trainer::prelude::*;
/// # fn load(trainer: &mut Trainer<impl Task>) -> Result<()> {
/// let loaded = trainer.load_weights("pretrained.safetensors", &LoadWeights::new().partial(true))?;
/// println!("{} loaded, missing: {}", loaded.loaded.len(), loaded.missing.join(", "));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Variables of the task that have new values.
    pub loaded: Vec<String>,
    /// Variables of the task that the file does not have.
    pub missing: Vec<String>,
    /// Variables that keep their values, because hooks [added](crate::AddVariables) or set them and
    /// the file has none of the added variables.
    pub kept: Vec<String>,
    /// Names in the file that match no variable of the task, as they were before renaming. Skipped
    /// tensors and PyTorch's `num_batches_tracked` are not listed.
    pub unexpected: Vec<String>,
    /// Variables of the task that have a different shape in the file.
    pub mismatched: Vec<Mismatch>,
    /// Whether the values come from the averages of a checkpoint.
    pub is_averaged: bool,
}

/// A variable of the task that has a different shape in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The name of the variable in the task.
    pub name: String,
    /// The shape in the file.
    pub file: Vec<i64>,
    /// The shape in the task.
    pub task: Vec<i64>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { name, file, task } = self;
        write!(f, "`{name}` has the shape {file:?} in the file, but {task:?} in this trainer")
    }
}

/// Formats the number of loaded variables, and a line for each name that was not loaded.
impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let averaged = if self.is_averaged { " (averaged)" } else { "" };
        write!(f, "{} variables loaded{averaged}", self.loaded.len())?;
        self.missing.iter().try_for_each(|name| write!(f, "\n- missing: `{name}`"))?;
        self.unexpected.iter().try_for_each(|name| write!(f, "\n- unexpected: `{}`", shortened(name)))?;
        self.mismatched.iter().try_for_each(|mismatch| write!(f, "\n- mismatched: {mismatch}"))
    }
}

/// A file of weights. Its tensors are read when they are needed.
enum WeightsFile<'a> {
    Safetensors(Encoded<'a>),
    TorchSave(Box<pt::StateDict<'a>>),
}

impl<'a> WeightsFile<'a> {
    fn open(bytes: &'a [u8], section: &[String]) -> Result<Self> {
        if bytes.starts_with(b"PK\x03\x04") {
            let file = pt::StateDict::open(bytes, section, conversion)?;
            return Ok(WeightsFile::TorchSave(Box::new(file)));
        }
        let file = Encoded::open(bytes, "weights (`safetensors` or `torch.save`)", conversion)
            .map_err(Error::msg)?;
        if let Some(section) = section.first() {
            return Err(Error::msg(format!(
                "`.section({section:?})` is for `torch.save` files, but this file is not one: remove the call"
            )));
        }
        Ok(WeightsFile::Safetensors(file))
    }

    fn names(&self) -> Vec<String> {
        match self {
            WeightsFile::Safetensors(file) => file.names().into_iter().map(str::to_owned).collect(),
            WeightsFile::TorchSave(file) => file.names().map(str::to_owned).collect(),
        }
    }

    /// Returns an error if the file has something other than a tensor under this name.
    fn check(&self, name: &str) -> Result<()> {
        match self {
            WeightsFile::Safetensors(_) => Ok(()),
            WeightsFile::TorchSave(file) => file.check(name),
        }
    }

    fn tensor(&mut self, name: &str) -> Result<Tensor> {
        match self {
            WeightsFile::Safetensors(file) => file.tensor(name).map_err(Error::msg),
            WeightsFile::TorchSave(file) => file.tensor(name),
        }
    }
}

/// Returns how to convert a file of a format that cannot be read into one that can.
pub(super) fn conversion(format: Format) -> &'static str {
    match format {
        Format::TorchSaveLegacy => {
            "load it in Python with `torch.load`, and save it again with `torch.save`, or with `safetensors.torch.save_file`"
        }
        Format::TorchTar => {
            "if you trust it, load it in Python with `torch.load(…, weights_only=False)`, and save it again with `torch.save`"
        }
        Format::TorchExport => {
            "load it in Python with `torch.export.load`, and save the `state_dict` of the program with `torch.save`"
        }
        Format::Pickle | Format::Zlib => {
            "if you trust it, load it in Python with the package that wrote it, which executes what the file names, and save \
             its arrays with `safetensors.numpy.save_file`, or its state dict with `torch.save`"
        }
        Format::Hdf5 => {
            "load it in Python with `h5py` or Keras, and save its arrays by name with `safetensors.numpy.save_file`"
        }
        Format::Keras => {
            "load it in Python with `keras.models.load_model`, and save the arrays of `model.variables` by their `path` with \
             `safetensors.numpy.save_file`"
        }
        Format::Gguf => {
            "use the `safetensors` files from which it was made, or save `gguf.dequantize(tensor.data, tensor.tensor_type)` of \
             each tensor of `gguf.GGUFReader` with `safetensors.numpy.save_file` in Python"
        }
        Format::Onnx | Format::TfLite => {
            "save the state dict of the model from which it was made: a converter may change weights, and keep their names"
        }
        Format::MessagePack => {
            "load it in Python with `flax.serialization.msgpack_restore`, and save its arrays by name \
             (`flax.traverse_util.flatten_dict(…, sep=\".\")`) with `safetensors.numpy.save_file`"
        }
        Format::Npy => {
            "load it in Python with `numpy.load`, and save it by the name of its variable with `safetensors.numpy.save_file`"
        }
        Format::Npz => "save it in Python with `safetensors.numpy.save_file(dict(numpy.load(…)), …)`",
        Format::Matlab => {
            "load it in Python with `scipy.io.loadmat`, and save its arrays with `safetensors.numpy.save_file`"
        }
        Format::Json => {
            "name the file with the weights; if it lists the files of several parts (`weight_map`), load each of these files \
             with `.partial(true)`"
        }
        Format::Text => {
            "name the file with the weights, or download it again if a server sent this text in its place"
        }
        Format::Unknown => {
            "if it has weights, it is damaged or of a format that cannot be read: save them with \
             `safetensors.torch.save_file` in Python"
        }
        _ => format.remedy().unwrap_or("name the file with the weights"),
    }
}

/// The remedy for the files of `torch.distributed.checkpoint`.
const DISTRIBUTED: &str = "convert the folder of `torch.distributed.checkpoint` with \
     `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE`, and load this file";

/// Returns the message about a folder that is not a checkpoint of this crate.
#[cold]
fn without_manifest(entries: &[PathBuf]) -> String {
    let has = |is: &dyn Fn(&str) -> bool| entries.iter().any(|path| is(name_of(path)));
    let extensions = ["safetensors", "pt", "pth", "bin", "ckpt"];
    let is_weights = |path: &&PathBuf| {
        path.extension()
            .is_some_and(|own| extensions.iter().any(|it| own == *it) && open(path, Links::Follow).is_ok())
    };
    let mut weights: Vec<_> =
        entries.iter().filter(is_weights).map(|path| format!("`{}`", name_of(path))).collect();
    weights.sort();
    let help = match &weights[..] {
        _ if has(&|name| name == ".metadata" || name.ends_with(".distcp")) => {
            format!("it has several parts of the weights: {DISTRIBUTED}")
        }
        _ if has(&|name| name.ends_with(".index.json")) => {
            format!("it has weights in several files: load each with `.partial(true)`: {}", shown(&weights))
        }
        [] => "it has no file of weights: name a file, or a checkpoint folder".to_owned(),
        [only] => format!("name the file in it: {only}"),
        several => format!("name one of the files in it: {}", shown(several)),
    };
    format!("expected a file of weights or a checkpoint, found a folder that is neither: {help}")
}

fn shown(names: &[String]) -> String {
    let more = if names.len() > 8 { format!(" and {} more", names.len() - 8) } else { String::new() };
    names[..names.len().min(8)].join(", ") + &more
}

/// Loads a file of weights, or the weights of a checkpoint folder, into variables. If the folder
/// has averaged weights, loads these instead of the live ones. If the file has none of the
/// variables that hooks have `added`, all variables that hooks added or set keep their values.
pub(crate) fn load(vars: &Vars, added: &Added, path: &Path, how: &LoadWeights<'_>) -> Result<Loaded> {
    let folder = path;
    let path = &if is_file(&folder.join(MANIFEST)) { folder.join(MODEL) } else { folder.to_owned() };
    let averages = folder.join(AVERAGES);
    let is_averaged = path != folder && is_file(&averages);
    let mut report = Loaded { is_averaged, ..Loaded::default() };
    let mut paths = vec![path];
    paths.extend(is_averaged.then_some(&averages));
    if path.extension().is_some_and(|extension| extension == "distcp") {
        return Err(in_file(path, format!("it is a part of the weights: {DISTRIBUTED}")));
    }
    if let Ok(entries) = entries(path) {
        return Err(in_file(path, without_manifest(&entries)));
    }
    let bytes = paths.iter().map(|path| tensors::read(path)).collect::<Result<Vec<_>>>()?;
    let mut opened = Vec::new();
    // The index of the file with the tensor of each name; if two files have it, the later one.
    let mut file_of = BTreeMap::new();
    for (nth, (path, bytes)) in paths.iter().zip(&bytes).enumerate() {
        let file = WeightsFile::open(bytes, &how.section).map_err(|error| in_file(path, error))?;
        file_of.extend(file.names().into_iter().map(|name| (name, nth)));
        opened.push(file);
    }

    let names: Vec<String> = file_of.keys().cloned().collect();
    if names.is_empty() {
        return Err(in_file(path, "the file has no tensors: save the weights again"));
    }
    let mapped = how.rules.apply(&names).map_err(|error| in_file(path, error))?;
    let mut saved = BTreeMap::new();
    let names: Vec<String> = mapped.iter().flatten().cloned().collect();
    for ((name, nth), own) in file_of.into_iter().zip(mapped) {
        let Some(own) = own else { continue };
        opened[nth].check(&name).map_err(|error| in_file(paths[nth], error))?;
        if vars.has(&own) {
            let tensor = opened[nth].tensor(&name).map_err(|error| in_file(paths[nth], error))?;
            if saved.insert(own.clone(), tensor).is_some() {
                return Err(in_file(
                    path,
                    format!(
                        "two of its tensors have the name `{own}` after renaming: give each a different name, or skip one"
                    ),
                ));
            }
        } else if !name.ends_with("num_batches_tracked") {
            report.unexpected.push(name); // except PyTorch's counters, which tch does not have
        }
    }
    let mut copies = Vec::new();
    let has_added = saved.keys().any(|name| added.created.contains(name));
    for (name, own) in named(vars) {
        match saved.get(&name) {
            _ if !has_added && (added.created.contains(&name) || added.set.contains(&name)) => {
                report.kept.push(name);
            }
            None => report.missing.push(name),
            Some(tensor) if tensor.size() != own.size() => {
                report.mismatched.push(Mismatch { name, file: tensor.size(), task: own.size() });
            }
            Some(tensor) => {
                copies.push((own, tensor.shallow_clone()));
                report.loaded.push(name);
            }
        }
    }
    let names_differ = !(report.missing.is_empty() && report.unexpected.is_empty());
    let refuses_names = names_differ && !how.partial;
    if refuses_names || !(report.mismatched.is_empty() || how.skip_mismatched) {
        return Err(refused(path, &report, refuses_names, || calls_that_fit(vars, &report, &names)));
    }
    copy(copies)?;
    Ok(report)
}

/// Returns the error that lists the differences. `calls` returns the calls that make the names fit.
#[cold]
fn refused(path: &Path, report: &Loaded, lists_names: bool, calls: impl FnOnce() -> Option<String>) -> Error {
    let mut parts = Vec::new();
    let mut help = Vec::new();
    if lists_names {
        parts.push(differences(&report.missing, &report.unexpected));
        help.push(match calls() {
            Some(calls) => format!("the names fit with `{calls}`"),
            None => "load part of it with `LoadWeights::new().partial(true)`, or map names with `.rename_pattern(…)`"
                .to_owned(),
        });
    }
    if !report.mismatched.is_empty() {
        let first = report.mismatched.iter().take(3).map(Mismatch::to_string);
        let more = match report.mismatched.len() {
            0..=3 => String::new(),
            count => format!(" and {} more", count - 3),
        };
        parts.push(first.collect::<Vec<_>>().join(", ") + &more);
        help.push(
            "keep the values of variables whose shape differs with `.skip_mismatched(true)`".to_owned(),
        );
    }
    in_file(path, format!("{}: {}", parts.join("; "), help.join("; ")))
}

/// The names with which wrappers of PyTorch hold the module that they wrap.
const WRAPPERS: [&str; 5] =
    ["module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module."];

/// Returns the calls on [`LoadWeights`] after which more, or all, of the `names` in the file fit
/// the variables of the task. `None` if there are none.
#[cold]
fn calls_that_fit(vars: &Vars, report: &Loaded, names: &[String]) -> Option<String> {
    let own: BTreeSet<&str> = vars
        .iter()
        .map(|var| &*var.name)
        .filter(|name| !report.kept.iter().any(|kept| kept == name))
        .collect();
    let missing_of = |names: &[String]| {
        let unique: BTreeSet<&str> = names.iter().map(|name| &**name).collect();
        (unique.len() == names.len()).then(|| own.difference(&unique).count())
    };
    // A prefix that the file has and the task lacks, or the other way round.
    let mut patterns: BTreeSet<(String, String)> =
        WRAPPERS.iter().map(|wrapper| (format!("*{wrapper}*"), "**".to_owned())).collect();
    for missing in report.missing.iter().take(4) {
        for name in names {
            let ends_with =
                |long: &'_ str, short: &str| Some(long.strip_suffix(short)?.strip_suffix('.')?.to_owned());
            if let Some(prefix) = ends_with(name, missing) {
                patterns.insert((format!("{prefix}.*"), "*".to_owned()));
            }
            if let Some(prefix) = ends_with(missing, name) {
                patterns.insert(("*".to_owned(), format!("{prefix}.*")));
            }
        }
    }
    let mut names = names.to_vec();
    let renamed = patterns.into_iter().take(64).filter_map(|(from, to)| {
        let mut rules = Rules::default();
        rules.add_pattern(from.clone(), to.clone());
        let renamed: Vec<String> = rules.apply(&names).ok()?.into_iter().flatten().collect();
        Some((missing_of(&renamed)?, from, to, renamed))
    });
    // Of two that fit equally well, a prefix is clearer.
    let best = renamed.min_by_key(|(missing, from, ..)| (*missing, from.starts_with('*')));
    let mut missing = report.missing.len();
    let mut calls = String::new();
    if let Some((fewer, from, to, renamed)) = best
        && fewer < missing
    {
        calls = format!(".rename_pattern({from:?}, {to:?})");
        missing = fewer;
        names = renamed;
    }
    let unexpected: Vec<&String> = names
        .iter()
        .filter(|name| !own.contains(&***name) && !name.ends_with("num_batches_tracked"))
        .collect();
    let mut skips: BTreeSet<String> = unexpected.iter().map(|name| (*name).clone()).collect();
    if skips.len() > 3 {
        // Whole modules, if none of their variables is in the task.
        skips = skips
            .iter()
            .map(|name| name.split_once('.').map_or(name.clone(), |(first, _)| format!("{first}.*")))
            .collect();
    }
    let fits = |pattern: &String| {
        !pattern.contains('?') && !own.iter().any(|name| wildmatch::WildMatch::new(pattern).matches(name))
    };
    if missing == 0 && skips.len() <= 3 && skips.iter().all(fits) {
        calls.extend(skips.iter().map(|pattern| format!(".skip({pattern:?})")));
    } else if !calls.is_empty() {
        calls += ".partial(true)";
    }
    (!calls.is_empty()).then_some(calls)
}

fn named(vars: &Vars) -> NamedTensors {
    vars.iter().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect()
}

/// Tensors, each with its new value.
pub(crate) type Copies = Vec<(Tensor, Tensor)>;

/// Returns an error unless the saved tensors, of these dtypes and shapes, are those of the
/// variables.
pub(crate) fn check_fit(vars: &Vars, saved: &BTreeMap<&str, (Kind, Vec<i64>)>) -> Result<()> {
    let missing: Vec<String> =
        vars.iter().map(|var| var.name.clone()).filter(|name| !saved.contains_key(name.as_str())).collect();
    let unexpected: Vec<String> =
        saved.keys().filter(|name| !vars.has(name)).map(ToString::to_string).collect();
    if !(missing.is_empty() && unexpected.is_empty()) {
        return Err(Error::usage(format!(
            "{}: build the same model as when the checkpoint was written",
            differences(&missing, &unexpected)
        )));
    }
    for var in vars.iter() {
        let (kind, shape) = &saved[var.name.as_str()];
        let own = var.tensor.size();
        if own != *shape {
            let mismatch = Mismatch { name: var.name.clone(), file: shape.clone(), task: own };
            return Err(Error::usage(format!(
                "{mismatch}: build the same model as when the checkpoint was written"
            )));
        }
        if var.tensor.kind() != *kind {
            return Err(Error::usage(format!(
                "`{}` has the dtype {kind:?} in the file, but {:?} in this trainer: build the model with the dtype of the file",
                var.name,
                var.tensor.kind()
            )));
        }
    }
    Ok(())
}

/// Lists the first three missing and unexpected names, and the number of the remaining ones.
fn differences(missing: &[String], unexpected: &[String]) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing: {}", list(missing, unexpected)));
    }
    if !unexpected.is_empty() {
        parts.push(format!("unexpected: {}", list(unexpected, &[])));
    }
    parts.join("; ")
}

/// Lists the first three names, each with the most similar name from `others`, if any is similar.
fn list(names: &[String], others: &[String]) -> String {
    let first = names.iter().take(3).map(|name| match nearest(name, others.iter().map(String::as_str)) {
        Some(similar) => format!("`{}` (similar: `{similar}`)", shortened(name)),
        None => format!("`{}`", shortened(name)),
    });
    let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
    first.collect::<Vec<_>>().join(", ") + &more
}

/// Copies the new values into the storage of the tensors.
pub(crate) fn copy(copies: Copies) -> Result<()> {
    let _no_grad = tch::no_grad_guard();
    for (mut own, saved) in copies {
        own.f_copy_(&saved)?;
    }
    Ok(())
}
