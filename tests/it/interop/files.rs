//! Files of other programs: each is read, to the bit, or refused with the advice that helps.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use trainer::checkpoint::LoadWeights;
use trainer::hooks::Lora;
use trainer::prelude::*;

use super::run_script;
use crate::model;
use crate::support::{exact_state, scratch};

#[derive(Deserialize)]
struct Listing {
    files: Vec<Case>,
    /// The packages that are not installed.
    missing: Vec<String>,
}

/// A file, and what is expected of it.
#[derive(Deserialize)]
struct Case {
    file: String,
    /// The program that wrote it.
    by: String,
    #[serde(default)]
    section: Vec<String>,
    #[serde(default)]
    rename: Vec<[String; 2]>,
    #[serde(default)]
    skip: Vec<String>,
    /// What the error has if the file is read without any setting.
    says: Vec<String>,
    /// Whether no setting helps.
    #[serde(default)]
    refused: bool,
    /// The files that have the weights together.
    #[serde(default)]
    parts: Vec<String>,
    /// Whether it is a folder of `peft`.
    #[serde(default)]
    adapter: bool,
}

/// Returns an error unless the variables of the model have the values of the script: 0, 1, 2, …
/// plus the number of the variable.
fn loaded(trainer: &Trainer<impl Task>) -> Result<(), String> {
    let mut vars: Vec<_> = trainer.vars().iter().collect();
    vars.sort_by(|a, b| a.name.cmp(&b.name));
    for (nth, var) in vars.iter().enumerate() {
        let count = i64::try_from(var.tensor.numel()).unwrap();
        let expected = Tensor::arange(count, (Kind::Float, Device::Cpu)).view_as(&var.tensor);
        if var.tensor != expected + i64::try_from(nth).unwrap() {
            return Err(format!("`{}` has other values", var.name));
        }
    }
    Ok(())
}

fn how(case: &Case) -> LoadWeights<'_> {
    let mut how = LoadWeights::new();
    for key in &case.section {
        how = how.section(key);
    }
    for [from, to] in &case.rename {
        how = how.rename_pattern(from, to);
    }
    case.skip.iter().fold(how, |how, pattern| how.skip(pattern))
}

fn check(folder: &Path, case: &Case) -> Result<(), String> {
    let path = folder.join(&case.file);
    let mut trainer = model::builder().build().unwrap();
    let before = exact_state(&trainer);
    let says = |text: &str| match case.says.iter().find(|part| !text.contains(part.as_str())) {
        Some(part) => Err(format!("expected {part:?}: {text}")),
        None => Ok(()),
    };
    if case.adapter {
        return match Lora::from_peft(&path, "") {
            Ok(_) => Err("it was read".to_owned()),
            Err(error) => says(&error.to_string()),
        };
    }
    if !case.parts.is_empty() {
        for part in &case.parts {
            trainer
                .load_weights(path.join(part), &how(case).partial(true))
                .map_err(|error| error.to_string())?;
        }
        return loaded(&trainer);
    }
    if case.refused || !case.says.is_empty() {
        let Err(error) = trainer.load_weights(&path, &LoadWeights::new()) else {
            return Err("it was read".to_owned());
        };
        let error = error.to_string();
        println!("  {error}");
        says(&error)?;
        assert!(!error.chars().any(|c| c.is_control() && c != '\n'), "{error:?}");
        assert_eq!(exact_state(&trainer), before, "nothing has changed");
    }
    if !case.refused {
        trainer.load_weights(&path, &how(case)).map_err(|error| error.to_string())?;
        loaded(&trainer)?;
    }
    Ok(())
}

#[test]
#[ignore = "run by `make interop`"]
fn files_of_other_programs_are_read_to_the_bit_or_refused_with_advice() {
    let folder = scratch("interop-files");
    run_script("files.py", &folder);
    let listing: Listing = serde_json::from_slice(&fs::read(folder.join("files.json")).unwrap()).unwrap();
    let mut failed = Vec::new();
    for case in &listing.files {
        println!("{} ({})", case.file, case.by);
        if let Err(why) = check(&folder, case) {
            println!("  FAILED: {why}");
            failed.push(format!("{} ({}): {why}", case.file, case.by));
        }
    }
    println!("{} files, {} failed", listing.files.len(), failed.len());
    assert!(failed.is_empty(), "{} files:\n{}", failed.len(), failed.join("\n"));
    assert_eq!(listing.missing, [""; 0], "packages that are not installed");
    fs::remove_dir_all(&folder).unwrap();
}
