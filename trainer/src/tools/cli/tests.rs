//! Compares the settings of the trainer with the methods of its builder.

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::{Args, Command};

use super::{SettingsParser, TrainerArgs, mistakes, names};
use crate::TrainerBuilder;
use crate::prelude::*;

/// The methods of the builder that no setting calls, each with the reason.
const LEFT_OUT: [(&str, &str); 26] = [
    ("accumulate_from", "takes pairs of an epoch and a number: a program with such a schedule has its own"),
    ("auto_device", "is `device = \"auto\"`"),
    ("build", "builds the trainer"),
    ("cancel_token", "takes a value of the program"),
    ("check_observers", "is set for one run by `TRAINER_CHECK=observers`"),
    ("discover", "selects hooks by the code that the program links"),
    ("heap", "is for a program that calls `mallopt`"),
    ("hook", "takes a value of the program"),
    ("hyperparameter", "records a value of the program: settings are recorded by themselves"),
    ("layer", "takes a value of the program"),
    ("observe", "takes a closure"),
    ("on", "takes a closure"),
    ("on_signal", "decides whether the code after the entry point runs"),
    ("optimizer", "takes a value of the program"),
    ("optimizer_of", "takes a value of the program"),
    ("profile", "is set for one run by `TRAINER_PROFILE`"),
    ("profile_synchronized", "is part of measuring one run, with `profile`"),
    ("rank", "is set by the launcher"),
    ("record_command_line", "protects secrets, which only the program knows"),
    ("require_crate", "states what the program is built from"),
    ("tape", "is set for one run by `TRAINER_TAPE`"),
    ("task_hooks", "adds the hooks of a type"),
    ("tracing", "needs a subscriber of the program"),
    ("update_batch_norm", "takes a loader"),
    ("world", "takes a value of the program"),
    ("hook_with", "is internal"),
];

/// The settings that are not named after a method.
const OTHERS: [&str; 1] = ["precision"]; // adds the hook `Amp`

fn settings() -> BTreeSet<String> {
    let command = names::named("TrainerArgs", TrainerArgs::augment_args(Command::new(""))).unwrap();
    mistakes::names(&command).map(str::to_owned).collect()
}

/// Finds the methods of the builder in all files below a folder.
fn methods(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            methods(&path, found);
            continue;
        }
        let text = if path.extension().is_some_and(|extension| extension == "rs") {
            fs::read_to_string(&path).unwrap()
        } else {
            continue;
        };
        for block in text.split("\nimpl<").skip(1) {
            let block = block.split("\n}\n").next().unwrap();
            let header = block.lines().next().unwrap();
            if !header.contains("> TrainerBuilder<T> {") {
                continue;
            }
            for line in block.lines().map(str::trim) {
                let name = line.strip_prefix("pub fn ").or_else(|| line.strip_prefix("pub(crate) fn "));
                if let Some(name) = name {
                    found.insert(name.split(['(', '<']).next().unwrap().to_owned());
                }
            }
        }
    }
}

/// Fails if a method of the builder is neither a setting nor in `LEFT_OUT`.
#[test]
fn every_method_of_the_builder_is_a_setting_or_left_out_for_a_reason() {
    let mut methods = BTreeSet::new();
    self::methods(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut methods);
    assert!(methods.len() > 40, "only {} methods were found", methods.len());
    let settings = settings();
    let left_out: BTreeSet<String> = LEFT_OUT.iter().map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<_> =
        methods.iter().filter(|name| !settings.contains(*name) && !left_out.contains(*name)).collect();
    assert!(missing.is_empty(), "these methods need a setting, or a reason in `LEFT_OUT`: {missing:?}");
    let stale: Vec<_> =
        left_out.iter().filter(|name| !methods.contains(*name) || settings.contains(*name)).collect();
    assert!(stale.is_empty(), "`LEFT_OUT` has methods that do not exist, or that are settings: {stale:?}");
    let unknown: Vec<_> =
        settings.iter().filter(|name| !methods.contains(*name) && !OTHERS.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "these settings call no method of their name: {unknown:?}");
}

#[derive(clap::Args)]
struct Nothing {}

fn builder(arguments: &[&str]) -> TrainerBuilder<impl Task> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root() / "fc", 2, 2, Default::default());
    let task =
        Supervised::new(vs, net, |pred: &Tensor, target: &Tensor| pred.mse_loss(target, Reduction::Mean));
    let arguments = [&["program"], arguments].concat();
    let (_, args) = SettingsParser::new().parse_from::<Nothing>(arguments).unwrap();
    args.apply(Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(crate::hook::Discover::None))
}

/// Each setting has the effect of the builder method with its name.
#[test]
fn every_setting_reaches_the_builder() {
    let recorded = |arguments: &[&str]| {
        let trainer = builder(arguments).build().unwrap();
        let values = trainer.run.all_hyperparameters();
        values.into_iter().map(|(name, value)| (name, value.to_string())).collect::<BTreeSet<_>>()
    };
    let without = recorded(&[]);
    let mut known = BTreeSet::new();
    for (name, text, hyperparameter, value) in [
        ("epochs", "3", "epochs", "3"),
        ("min_epochs", "1", "min_epochs", "1"),
        ("max_steps", "7", "max_steps", "7"),
        ("max_time", "90s", "max_time", "90s"),
        ("limit_train_batches", "0.5", "limit_train_batches", "0.5"),
        ("limit_valid_batches", "2", "limit_valid_batches", "2"),
        ("overfit_batches", "2", "overfit_batches", "2"),
        ("validate_every", "steps:5", "validate_every", "Steps(5)"),
        ("record_every", "epochs:1", "record_every", "Epochs(1)"),
        ("sanity_batches", "2", "sanity_batches", "2"),
        ("accumulate", "2", "accumulate", "[(0, 2)]"),
        ("clip_grad_norm", "1.5", "ClipGradNorm.max_norm", "1.5"),
        ("clip_grad_value", "0.5", "ClipGradValue.max_value", "0.5"),
        ("precision", "bf16", "Amp.precision", "Bf16"),
        ("seed", "5", "seed", "5"),
        ("deterministic", "true", "deterministic", "true"),
        ("matmul_precision", "high", "matmul_precision", "High"),
        ("cudnn_benchmark", "true", "cudnn_benchmark", "true"),
        ("channels_last", "true", "channels_last", "true"),
        ("detect_anomaly", "true", "detect_anomaly", "true"),
    ] {
        known.insert(name.to_owned());
        let with = recorded(&[&format!("--{name}={text}")]);
        let new: Vec<_> = with.difference(&without).filter(|(own, _)| own == hyperparameter).collect();
        assert_eq!(new, [&(hyperparameter.to_owned(), value.to_owned())], "{name}: {with:?}");
    }
    // Settings that are not recorded as hyperparameters.
    let run_of = |arguments: &[&str]| builder(arguments).build().unwrap().run;
    assert_eq!(run_of(&["--min_steps=2", "--epochs=1"]).settings().min_steps, 2);
    let limits = run_of(&["--limit_test_batches=3", "--limit_predict_batches=0.25"]);
    let limits = limits.settings();
    assert_eq!((limits.limit_test, limits.limit_predict), (Some(3.into()), Some(0.25.into())));
    assert_eq!(run_of(&["--fast_dev_run=2"]).settings().fast_dev_run, Some(2));
    assert!(run_of(&["--allow_inexact_resume"]).settings().inexact);
    assert_eq!(run_of(&["--device=auto"]).settings().device, Some(crate::training::device::first_device()));
    let run = builder(&["--run_folder=numbered:runs", "--resume=auto"]).build().unwrap().run;
    assert_eq!(run.folder_state().setting, Some(crate::RunFolder::numbered("runs")));
    assert_eq!(run.checkpoints().resume, Some(Resume::Auto));
    let unknown = builder(&["--without=a::b"]).build().unwrap_err().to_string();
    assert!(unknown.contains("a::b"), "{unknown}");
    known.extend(
        ["min_steps", "limit_test_batches", "limit_predict_batches", "fast_dev_run", "allow_inexact_resume"]
            .map(str::to_owned),
    );
    known.extend(["device", "run_folder", "resume", "without"].map(str::to_owned));
    assert_eq!(known, settings(), "each setting has a case");
}

#[test]
fn a_mistake_in_the_environment_names_the_variable_unless_the_command_line_wins() {
    let read = |arguments: &[&str]| {
        let arguments: Vec<std::ffi::OsString> =
            ["program"].iter().chain(arguments).map(Into::into).collect();
        match SettingsParser::new().read::<Nothing>(&arguments, Some("numbered:".into())) {
            Ok((_, args)) => format!("{:?}", args.run_folder),
            Err(super::Stopped::Failed(error)) => error.to_string(),
            Err(super::Stopped::Help(text)) => text,
        }
    };
    assert_eq!(
        read(&[]),
        "the environment variable `TRAINER_RUN_FOLDER` is `numbered:`: expected a folder after `numbered:`, such as \
         `numbered:runs`"
    );
    assert!(read(&["--run-folder", "given"]).contains("\"given\""));
}
