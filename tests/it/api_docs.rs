//! The reference of the crate: the docs of the methods of `Cx` say when each can be called, the page
//! of a type with many methods has a heading for each group of them, and the crate's page lists its
//! features.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const LIFECYCLE: &str = include_str!("../../trainer/src/moments/lifecycle.rs");

/// Returns the Rust files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the traits that bound the moment of a method.
fn traits() -> BTreeSet<String> {
    let mut traits = BTreeSet::from(["OnAllRanks".to_owned()]);
    let declared = LIFECYCLE.lines().map(str::trim).filter_map(|line| {
        let (word, rest) = line.split_once(' ')?;
        ["exists", "exist", "allows"].contains(&word).then_some(rest)?.split_once(": ")
    });
    traits.extend(declared.map(|(_, rest)| rest.split(' ').next().unwrap().to_owned()));
    traits
}

/// A public method of `Cx`.
#[derive(Debug, PartialEq)]
struct Method {
    name: String,
    /// The bounds on the moment, in the order of the code.
    bounds: Vec<String>,
    /// The bounds that the docs name.
    documented: Vec<String>,
}

/// Returns the heading and the public methods of each inherent impl block of `Cx`.
fn blocks(source: &str) -> Vec<(String, Vec<Method>)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut blocks = Vec::new();
    for (start, header) in lines.iter().enumerate() {
        let is_block = header.starts_with("impl") && header.contains(" Cx<") && !header.contains(" for ");
        if !is_block {
            continue;
        }
        let docs = lines[..start].iter().rev().take_while(|line| line.starts_with("///"));
        let heading = docs.last().map(|line| line.trim_start_matches('/').trim().to_owned());
        let body = lines[start..].iter().take_while(|line| **line != "}");
        let mut methods: Vec<Method> = Vec::new();
        let mut documented = Vec::new();
        let mut is_public = false;
        for line in body {
            let line = line.trim();
            if let Some(name) =
                line.strip_prefix("#[doc = available!(").and_then(|rest| rest.strip_suffix(")]"))
            {
                documented.push(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("pub fn ") {
                let name = rest.split(['(', '<']).next().unwrap().to_owned();
                methods.push(Method {
                    name,
                    bounds: Vec::new(),
                    documented: std::mem::take(&mut documented),
                });
                is_public = true;
            } else if line.starts_with("fn ") || line.starts_with("pub(crate) fn ") {
                is_public = false;
            } else if let Some(bounds) = line.strip_prefix("P: ").filter(|_| is_public) {
                let bounds = bounds.trim_end_matches(',').split(" + ").map(str::to_owned);
                methods.last_mut().unwrap().bounds.extend(bounds);
            }
        }
        blocks.push((heading.unwrap_or_default(), methods));
    }
    blocks
}

/// Returns the traits that the docs of a method must name.
fn expected(method: &Method, traits: &BTreeSet<String>) -> Vec<String> {
    method.bounds.iter().filter(|bound| traits.contains(*bound)).cloned().collect()
}

#[test]
fn each_method_of_the_context_says_when_it_can_be_called() {
    let traits = traits();
    let mut sources = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/src"), &mut sources);
    let mut wrong = Vec::new();
    let mut named = Vec::new();
    for path in sources {
        for (heading, methods) in blocks(&fs::read_to_string(&path).unwrap()) {
            let file = path.file_name().unwrap().to_string_lossy();
            if !methods.is_empty() && !heading.starts_with("# ") {
                wrong.push(format!("{file}: the block with `{}` has no heading", methods[0].name));
            }
            for method in methods {
                let expected = expected(&method, &traits);
                if method.documented != expected {
                    wrong.push(format!(
                        "{file}: `{}` needs {expected:?}, has {:?}",
                        method.name, method.documented
                    ));
                }
                named.extend(expected);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Each declared trait bounds a method, or it was not found.
    for name in &traits {
        assert!(named.contains(name), "no method with the bound `{name}` was found");
    }
}

/// The methods of `Cx` that a hook on rank 0 only may call although they change something or make a
/// request, each with the reason.
const ON_RANK_0: [(&[&str], &str); 8] = [
    (&["fire", "fire_with", "run"], "`FireableFrom<P>` is implemented for moments on all ranks only"),
    (&["end_epoch", "keep_state", "roll_back", "stop"], "a request on any rank takes effect on all ranks"),
    (&["save_checkpoint", "save_checkpoint_in_background", "take_checkpoint_request"], "as above"),
    (&["save", "save_tensor"], "rank 0 writes what is equal on all ranks"),
    (
        &["log", "log_as", "log_histogram", "log_image", "log_text", "log_weighted"],
        "the names are not compared",
    ),
    (
        &["expect_metric", "record_goal", "warn", "warn_incomplete"],
        "only messages and records depend on them",
    ),
    (&["checkpoint_activations"], "the results do not depend on it"),
    (
        &["eval"],
        "it changes nothing, and a collective in a hook at `eval` is refused while rank 0 runs alone",
    ),
];

/// The methods of `Cx` that take `&self`, but are collectives or return a handle for them.
const COLLECTIVES: [&str; 1] = ["world"];

#[test]
fn each_method_of_the_context_that_makes_ranks_differ_needs_all_ranks() {
    let context = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/src");
    let mut sources = Vec::new();
    files(&context, &mut sources);
    let mut listed: BTreeSet<&str> = ON_RANK_0.iter().flat_map(|(names, _)| *names).copied().collect();
    let mut count = 0;
    for source in sources.iter().map(|path| fs::read_to_string(path).unwrap()) {
        for (heading, method) in blocks(&source)
            .into_iter()
            .flat_map(|(heading, methods)| methods.into_iter().map(move |method| (heading.clone(), method)))
        {
            let name = method.name.as_str();
            // A moment that only exists on all ranks, such as `Cx<Setup>`, needs no bound.
            let is_generic = !heading.contains("at `setup`");
            let signature = source.split(&format!("pub fn {name}")).nth(1).unwrap();
            let takes_mut = signature.split(')').next().unwrap().contains("&mut self");
            let has_bound = method.bounds.iter().any(|bound| bound == "OnAllRanks");
            let is_reason = listed.remove(name);
            assert!(!(is_reason && has_bound), "`{name}` is listed, but has the bound");
            if takes_mut || COLLECTIVES.contains(&name) {
                count += 1;
                assert!(
                    has_bound || is_reason || !is_generic,
                    "`Cx::{name}` takes `&mut self`: add the bound `OnAllRanks`, or the reason why rank 0 may call it alone"
                );
            }
        }
    }
    assert!(listed.is_empty() && count > 20, "{listed:?}: {count}");
}

#[test]
fn a_method_without_an_availability_line_is_detected() {
    let source = "
/// # Logging
impl<P> Cx<P> {
    #[doc = available!(HasBatch)]
    pub fn loss(&self) -> Tensor
    where
        P: HasLoss + OnAllRanks,
    {
    }

    fn private(&self)
    where
        P: CanLog,
    {
    }
}
";
    let blocks = blocks(source);
    let [(heading, methods)] = &blocks[..] else { panic!("{blocks:?}") };
    assert_eq!(heading, "# Logging");
    let [method] = &methods[..] else { panic!("{methods:?}") };
    assert_eq!(method.documented, ["HasBatch"]);
    assert_eq!(expected(method, &traits()), ["HasLoss", "OnAllRanks"]);
}

#[test]
fn the_crate_documentation_lists_each_feature() {
    let manifest = include_str!("../../trainer/Cargo.toml");
    let features = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let features = features.take_while(|line| !line.starts_with('[')).filter_map(|line| {
        let (name, _) = line.split_once(" = ")?;
        (!name.starts_with('#')).then_some(name)
    });
    let page = include_str!("../../trainer/src/lib.rs").lines();
    let rows = page.skip_while(|line| *line != "//! # Features").skip(1);
    let rows = rows.take_while(|line| !line.starts_with("//! # "));
    let rows = rows.filter_map(|line| line.strip_prefix("//! | `")?.split('`').next());
    let [listed, declared]: [BTreeSet<&str>; 2] = [rows.collect(), features.collect()];
    assert!(declared.len() > 10, "{declared:?}");
    assert_eq!(listed, declared);
}

/// The names by which users of other frameworks look for things here.
const KNOWN_NAMES: [&str; 59] = [
    "CrossEntropyLoss",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "T_0",
    "T_mult",
    "TensorBoardLogger",
    "WandbLogger",
    "accelerator",
    "accumulate_grad_batches",
    "callbacks",
    "ckpt_path",
    "class_weight",
    "configure_optimizers",
    "criterion",
    "devices",
    "enable_progress_bar",
    "evaluate",
    "fit",
    "forward",
    "global_step",
    "gradient_accumulation_steps",
    "gradient_clip_val",
    "initial_epoch",
    "load_best_model_at_end",
    "load_checkpoint",
    "load_state_dict",
    "log_every_n_steps",
    "lr_scheduler",
    "max_epochs",
    "max_grad_norm",
    "mode",
    "monitor",
    "num_nodes",
    "num_train_epochs",
    "num_workers",
    "on_epoch_end",
    "on_step_end",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_validation_epoch_end",
    "predict_step",
    "precision",
    "rank_zero_only",
    "restore_best_weights",
    "sample_weight",
    "save_checkpoint",
    "save_hyperparameters",
    "save_top_k",
    "seed_everything",
    "strategy",
    "test_step",
    "train_test_split",
    "training_step",
    "validation_split",
    "validation_step",
    "verbose",
    "warmup_ratio",
];

/// Returns the names by which a search of the docs finds something: aliases, public functions and
/// types, and other frameworks' names for moments, which the macro makes aliases of their markers.
fn searchable() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = Vec::new();
    files(&root.join("trainer/src"), &mut sources);
    files(&root.join("trainer/formats/src"), &mut sources);
    let mut names = BTreeSet::new();
    for line in sources.iter().flat_map(|path| lines(&fs::read_to_string(path).unwrap())) {
        if let Some(aliases) = line.strip_prefix("#[doc(alias") {
            names.extend(aliases.split('"').skip(1).step_by(2).map(str::to_owned));
        }
        let item = ["pub fn ", "pub struct ", "pub enum ", "pub trait ", "pub type "];
        if let Some(rest) = item.iter().find_map(|start| line.strip_prefix(start)) {
            names.extend(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned));
        }
    }
    names.extend(
        trainer::migration::POINTS
            .iter()
            .filter(|row| !row.moment.is_empty())
            .map(|row| row.theirs.to_owned()),
    );
    names
}

fn lines(source: &str) -> Vec<String> {
    source.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn names_of_other_frameworks_are_found_by_a_search() {
    let names = searchable();
    assert!(names.len() > 1000, "{}", names.len());
    let missing: Vec<_> = KNOWN_NAMES.iter().filter(|name| !names.contains(**name)).collect();
    assert!(missing.is_empty(), "add `#[doc(alias = …)]` for {missing:?}");
}
