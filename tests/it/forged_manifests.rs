//! Untrusted checkpoints: whatever a manifest contains, nothing outside of its folder is touched.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use inotify::{Inotify, WatchMask};
use serde_json::{Value, json};
use trainer::checkpoint;
use trainer::hooks::{Checkpoint, EarlyStopping, HyperparameterSchedule, ReduceOnPlateau};
use trainer::prelude::*;
use trainer::schedule::Cosine;

use crate::model::{self, builder};
use crate::support::{Random, scratch, sealed, tree};

/// Detects files in the watched folders that are written, created, moved or removed, or whose
/// attributes change.
struct Guard(Inotify);

impl Guard {
    fn watch(folders: &[&Path]) -> Self {
        let inotify = Inotify::init().unwrap();
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE
            | WatchMask::MOVE_SELF
            | WatchMask::ATTRIB;
        for folder in folders {
            inotify.watches().add(folder, mask).unwrap();
        }
        Guard(inotify)
    }

    fn assert_silent(&mut self, case: &str) {
        let mut buffer = [0; 4096];
        match self.0.read_events(&mut buffer) {
            Ok(events) => {
                let events: Vec<_> =
                    events.map(|event| format!("{:?} {:?}", event.mask, event.name)).collect();
                assert!(events.is_empty(), "{case}: {events:?}");
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

/// Collects the path of every value of a manifest: keys and indices from the root.
fn value_paths(value: &Value, at: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(values) => {
            values.iter().enumerate().map(|(nth, value)| (nth.to_string(), value)).collect()
        }
        _ => Vec::new(),
    };
    for (key, child) in children {
        at.push(key);
        found.push(at.clone());
        value_paths(child, at, found);
        at.pop();
    }
}

/// Returns mutable access to the value at a path.
fn value_at<'a>(json: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(json, |json, key| match json {
        Value::Array(values) => &mut values[key.parse::<usize>().unwrap()],
        other => &mut other[key.as_str()],
    })
}

/// Returns a random value that might break a reader or lead out of the folder.
fn hostile_value(random: &mut Random, precious: &str) -> Value {
    let nested = (0..100)
        .fold(json!(null), |inner, nth| if nth % 2 == 0 { json!([inner]) } else { json!({"a": inner}) });
    let values = [
        json!("../precious"),
        json!("../../precious"),
        json!(precious),
        json!("step-00000002/../../precious"),
        json!(["../precious", precious, "/"]),
        json!([["../precious", 0.5]]),
        json!("(last:[0,1,2,18446744073709551615],best:[(3,0.5)])"),
        json!(format!("(last:[\"{precious}\"],best:[])")),
        json!("(best:Some(NaN),waited:18446744073709551615)"),
        json!("/"),
        json!("."),
        json!(".."),
        json!(""),
        json!("/dev/zero"),
        json!("a\u{0}b"),
        json!("model.safetensors"),
        json!("NaN"),
        json!("-inf"),
        json!("x".repeat(100_000)),
        json!("[".repeat(10_000)),
        json!(u64::MAX),
        json!(u64::MAX - 1),
        json!(1_u64 << 53),
        json!((1_u64 << 53) - 1),
        json!(1_u64 << 63),
        json!(i64::MIN),
        json!(-1),
        json!(0),
        json!(1),
        json!(1e308),
        json!(-0.5),
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!([null, [], {}]),
        nested,
    ];
    values[random.below(values.len())].clone()
}

/// Replaces one random word or number in the text of a saved value.
fn forge_in_text(random: &mut Random, text: &str) -> String {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    let words: Vec<&str> = text.split(|letter| !is_of_word(letter)).filter(|word| !word.is_empty()).collect();
    let Some(word) = words.get(random.below(words.len())) else { return "(".to_owned() };
    let at = word.as_ptr() as usize - text.as_ptr() as usize;
    let hostile = [
        "18446744073709551615",
        "18446744073709551614",
        "9007199254740992",
        "9007199254740991",
        "9223372036854775808",
        "-9223372036854775808",
        "-1",
        "0",
        "1",
        "1e308",
        "-0.5",
        "NaN",
        "inf",
        "None",
        "Some(3)",
        "true",
        "Training",
        "()",
        "[]",
        "[1,2,3]",
        "{}",
        "(",
        "\"../precious\"",
        "",
    ];
    format!("{}{}{}", &text[..at], hostile[random.below(hostile.len())], &text[at + word.len()..])
}

/// Removes, replaces or renames one random value, or adds hostile values next to it. Returns a
/// description of the change.
fn forge_one_value(random: &mut Random, json: &mut Value, all: &[Vec<String>], precious: &str) -> String {
    let path = &all[random.below(all.len())];
    let (last, parent) = path.split_last().unwrap();
    let value = match &*value_at(json, path) {
        Value::String(text) if random.below(2) == 0 => forge_in_text(random, text).into(),
        _ => hostile_value(random, precious),
    };
    let case = format!("{path:?} = {:.60}", value.to_string());
    match (random.below(8), value_at(json, parent)) {
        (0, Value::Object(fields)) => drop(fields.remove(last)),
        (0, Value::Array(values)) => drop(values.remove(last.parse::<usize>().unwrap())),
        // Adds a key, or renames one.
        (1, Value::Object(fields)) => drop(fields.insert(precious.to_owned(), value)),
        (2, Value::Object(fields)) => {
            if let Some(own) = fields.remove(last) {
                fields.insert("../precious".to_owned(), own);
            }
        }
        (1, Value::Array(values)) => values.push(value),
        (2, Value::Array(values)) => values.extend(vec![value; 50]),
        (_, parent) => *value_at(parent, std::slice::from_ref(last)) = value,
    }
    case
}

/// Writes a manifest with its hash and, if requested, with duplicate fields.
fn write_sealed(path: &Path, json: Value, has_duplicates: bool) {
    let mut text = sealed(json);
    if has_duplicates {
        // Most parsers take the last of two fields of one name.
        text.insert_str(
            1,
            "\"parts\":{\"loop\":{}},\"saved\":{\"trainer::hooks::Checkpoint\":\"../precious\"},",
        );
    }
    fs::write(path, text).unwrap();
}

/// Resumes from the newest checkpoint, with hooks that have state.
fn resume(folder: &Path, epochs: u64) -> Result<u64> {
    summary_of_resume(folder, epochs).map(|summary| summary.counters.batches_seen)
}

fn summary_of_resume(folder: &Path, epochs: u64) -> Result<Summary> {
    let hook = Checkpoint::new(folder).keep_last(1).keep_best(1, "train/loss", Goal::Minimize);
    let mut trainer = builder()
        .optimizer(AdamW::new(0.01))
        .epochs(epochs)
        .max_steps(epochs)
        .hook(hook)
        .hook(EarlyStopping::new("train/loss", Goal::Minimize))
        .hook(HyperparameterSchedule::lr(Cosine::to(0.0)))
        .hook(ReduceOnPlateau::new("train/loss", Goal::Minimize))
        .allow_inexact_resume(true)
        .resume(Resume::Auto)
        .build()?;
    trainer.fit(&mut model::rows(4), None)
}

/// Changes bytes of a tensor in the file `state.safetensors` of a checkpoint, and corrects all
/// hashes.
fn forge_state(checkpoint: &Path, tensor: &str, at: usize, value: &[u8]) {
    let file = checkpoint.join("state.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let data = 8 + usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let begin = usize::try_from(header[tensor]["data_offsets"][0].as_u64().unwrap()).unwrap();
    bytes[data + begin + at..][..value.len()].copy_from_slice(value);
    fs::write(&file, &bytes).unwrap();
    let path = checkpoint.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["files"]["state.safetensors"]["blake3"] = blake3::hash(&bytes).to_hex().to_string().into();
    fs::write(path, sealed(manifest)).unwrap();
}

#[test]
fn a_random_state_that_would_be_read_past_its_end_is_refused() {
    // The seeded flag is 1; `left` and `next` are valid by themselves, but not together.
    let left_and_next = [624_i32.to_ne_bytes(), 1_i32.to_ne_bytes()].concat();
    let position = [left_and_next, 624_u64.to_ne_bytes().to_vec()].concat();
    let beyond = (u64::from(u32::MAX) + 2).to_ne_bytes();
    for (at, value, expected) in [
        (8, &position[..], "its position is word 624 with 624 left, out of 624"),
        (16, &beyond[..], "its position is word 4294967297 with "),
        (12, &[255, 0, 0, 0], "its generator is not seeded"),
        (24, &[255; 8], "its words do not have 32 bits"),
        (5052, &[2], "its flags are neither 0 nor 1"),
    ] {
        let folder = scratch("forged-random-state");
        resume(&folder, 2).unwrap();
        let newest = checkpoint::newest(&folder).unwrap();
        forge_state(&newest, "random/cpu", at, value);
        checkpoint::verify(&newest).unwrap();
        let error = resume(&folder, 3).unwrap_err().to_string();
        assert!(error.contains("state.safetensors") && error.contains(expected), "{error}");
    }
}

/// Copies the files of a checkpoint into an empty folder.
fn copy_checkpoint(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_resume_repeats_no_text_of_a_manifest_as_it_is() {
    let memory = Path::new("/dev/shm");
    let name = format!("trainer-tests-{}-raw-manifest", std::process::id());
    let outside = if memory.is_dir() { memory.join(name) } else { scratch(&name) };
    let [folder, template] = ["run", "template"].map(|name| outside.join(name));
    resume(&template, 2).unwrap();
    let newest = checkpoint::newest(&template).unwrap();
    let own = folder.join(newest.file_name().unwrap());
    let mut manifest: Value =
        serde_json::from_slice(&fs::read(newest.join("manifest.json")).unwrap()).unwrap();
    manifest["inexact"] = json!(["a reason"]);
    let mut all = Vec::new();
    value_paths(&manifest, &mut Vec::new(), &mut all);
    let hostile = format!("1.2\u{1b}[31m\u{202e}\r\n{}", "red".repeat(5000));
    let mut shown = 0;
    for path in &all {
        for is_key in [false, true] {
            let mut json = manifest.clone();
            let (last, parent) = path.split_last().unwrap();
            match value_at(&mut json, parent) {
                Value::Object(fields) if is_key => {
                    let value = fields.remove(last).unwrap();
                    fields.insert(hostile.clone(), value);
                }
                parent if !is_key && parent[last].is_string() => parent[last] = json!(hostile),
                Value::Array(values) if !is_key => values[last.parse::<usize>().unwrap()] = json!(hostile),
                _ => continue,
            }
            copy_checkpoint(&newest, &own);
            write_sealed(&own.join("manifest.json"), json, false);
            let texts = match summary_of_resume(&folder, 2) {
                Ok(summary) => summary.warnings,
                Err(error) => vec![error.to_string()],
            };
            for line in texts.iter().flat_map(|text| text.split('\n')) {
                let raw = ['\u{1b}', '\u{202e}', '\r'];
                assert!(!line.contains(raw) && line.len() < 2500, "{path:?}: {line:?}");
                shown += usize::from(line.contains("red"));
            }
        }
    }
    assert!(shown > 10, "{shown}");
    // The version of a crate is printed if it is one.
    let mut json = manifest.clone();
    let hooks = json["facts"]["hooks"].as_object_mut().unwrap();
    hooks.values_mut().for_each(|hook| hook["package"][1] = json!("0.0.7-beta+1"));
    copy_checkpoint(&newest, &own);
    write_sealed(&own.join("manifest.json"), json.clone(), false);
    let warnings = summary_of_resume(&folder, 2).unwrap().warnings;
    assert!(warnings.iter().any(|text| text.contains("used version 0.0.7-beta+1")), "{warnings:?}");
    let hooks = json["facts"]["hooks"].as_object_mut().unwrap();
    hooks.values_mut().for_each(|hook| hook["package"][1] = json!("[1,2,3]"));
    copy_checkpoint(&newest, &own);
    write_sealed(&own.join("manifest.json"), json, false);
    let error = summary_of_resume(&folder, 2).unwrap_err().to_string();
    assert!(
        error.contains("manifest.json")
            && error.contains("expected the name and the version of a crate, found \"[1,2,3]\""),
        "{error}"
    );
    fs::remove_dir_all(outside).unwrap();
}

/// The number of forged manifests to try; `make soak` tries 100,000.
fn cases() -> usize {
    std::env::var("TRAINER_FORGED_MANIFESTS").map_or(4_000, |cases| cases.parse().unwrap())
}

/// Tries every `of`-th case, beginning with case `nth`.
fn try_cases(nth: usize, of: usize) {
    // In memory where possible, because each accepted case syncs a dozen files.
    let memory = Path::new("/dev/shm");
    let name = format!("trainer-tests-{}-forged-{nth}", std::process::id());
    let outside = if memory.is_dir() { memory.join(name) } else { scratch(&name) };
    let [folder, template, precious] = ["run", "template", "precious"].map(|name| outside.join(name));
    let inner = folder.join("precious");
    for folder in [&precious, &inner] {
        fs::create_dir_all(folder).unwrap();
        for name in ["manifest.json", "model.safetensors", "data.csv"] {
            fs::write(folder.join(name), "precious").unwrap();
        }
    }
    resume(&template, 2).unwrap();
    let newest = checkpoint::newest(&template).unwrap();
    let own = folder.join(newest.file_name().unwrap());
    let manifest: Value = serde_json::from_slice(&fs::read(newest.join("manifest.json")).unwrap()).unwrap();
    let mut all = Vec::new();
    value_paths(&manifest, &mut Vec::new(), &mut all);
    assert!(all.len() > 100, "{}", all.len());

    let before = (tree(&precious), tree(&inner));
    let mut guard = Guard::watch(&[&outside, &precious, &inner]);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (nth as u64 + 1));
    let mut accepted = 0;
    let mut resumed = 0;
    let reset = || {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path != inner {
                let _ = fs::remove_dir_all(&path);
            }
        }
        fs::create_dir_all(&own).unwrap();
        for entry in fs::read_dir(&newest).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), own.join(entry.file_name())).unwrap();
        }
    };
    reset();
    for _ in (nth..cases()).step_by(of) {
        let mut json = manifest.clone();
        let mut case = forge_one_value(&mut random, &mut json, &all, &precious.display().to_string());
        if random.below(4) == 0 {
            let mut now = Vec::new();
            value_paths(&json, &mut Vec::new(), &mut now);
            case += &forge_one_value(&mut random, &mut json, &now, "../precious");
        }
        write_sealed(&own.join("manifest.json"), json, random.below(50) == 0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let is_accepted = checkpoint::verify(&own).is_ok();
            if is_accepted {
                accepted += 1;
                resumed += usize::from(resume(&folder, 3).is_ok());
            }
            is_accepted
        }));
        guard.assert_silent(&case);
        match outcome {
            Err(_) => panic!("{case}: panicked"),
            Ok(true) => reset(),
            Ok(false) => {}
        }
    }
    println!("{accepted} of {} were accepted, {resumed} resumed", cases().div_ceil(of));
    assert!(accepted > cases() / of / 20 && resumed > 0, "{accepted} {resumed}");
    assert_eq!((tree(&precious), tree(&inner)), before);
    drop(guard);
    fs::remove_dir_all(&outside).unwrap();
}

#[test]
fn forged_manifests_cause_no_panic_and_touch_no_file_outside_of_their_folder() {
    std::thread::scope(|scope| {
        for nth in 0..2 {
            scope.spawn(move || {
                tch::set_num_threads(1);
                try_cases(nth, 2);
            });
        }
    });
}
