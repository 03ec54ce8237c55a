//! Checkpoints from somebody else: whatever a manifest says, nothing outside of its folder is touched.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use inotify::{Inotify, WatchMask};
use serde_json::{Value, json};
use trainer::checkpoint;
use trainer::hooks::{Checkpoint, EarlyStopping, LrSchedule, ReduceOnPlateau};
use trainer::prelude::*;
use trainer::schedule::Cosine;

use crate::files::tree;
use crate::model::{self, builder};
use crate::resume::scratch;

/// Reports whatever is opened for writing, created, moved or removed in the watched folders.
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
                let events: Vec<_> = events.map(|it| format!("{:?} {:?}", it.mask, it.name)).collect();
                assert!(events.is_empty(), "{case}: {events:?}");
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below.max(1) as u64).unwrap()
    }
}

/// Where every value of a manifest is: keys and indices from the root.
fn places(value: &Value, at: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(values) => values.iter().enumerate().map(|(nth, it)| (nth.to_string(), it)).collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        at.push(key);
        found.push(at.clone());
        places(child, at, found);
        at.pop();
    }
}

fn at<'a>(json: &'a mut Value, place: &[String]) -> &'a mut Value {
    place.iter().fold(json, |json, key| match json {
        Value::Array(values) => &mut values[key.parse::<usize>().unwrap()],
        other => &mut other[key.as_str()],
    })
}

fn hostile(random: &mut Random, precious: &str) -> Value {
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

fn change(random: &mut Random, json: &mut Value, all: &[Vec<String>], precious: &str) -> String {
    let place = &all[random.below(all.len())];
    let (last, parent) = place.split_last().unwrap();
    let value = hostile(random, precious);
    let case = format!("{place:?} = {:.60}", value.to_string());
    match (random.below(8), at(json, parent)) {
        (0, Value::Object(fields)) => drop(fields.remove(last)),
        (0, Value::Array(values)) => drop(values.remove(last.parse::<usize>().unwrap())),
        // A key of theirs beside ours, or in its place.
        (1, Value::Object(fields)) => drop(fields.insert(precious.to_owned(), value)),
        (2, Value::Object(fields)) => {
            if let Some(own) = fields.remove(last) {
                fields.insert("../precious".to_owned(), own);
            }
        }
        (1, Value::Array(values)) => values.push(value),
        (2, Value::Array(values)) => values.extend(vec![value; 50]),
        (_, parent) => *at(parent, std::slice::from_ref(last)) = value,
    }
    case
}

fn write(path: &Path, mut json: Value, has_duplicates: bool) {
    json.as_object_mut().unwrap().remove("blake3");
    let hash = blake3::hash(json.to_string().as_bytes()).to_hex().to_string();
    json["blake3"] = hash.into();
    let mut text = json.to_string();
    if has_duplicates {
        // Parsers take the last of two fields of one name.
        text.insert_str(
            1,
            "\"run\":{\"fits\":0},\"saved\":{\"trainer::hooks::Checkpoint\":\"../precious\"},",
        );
    }
    fs::write(path, text).unwrap();
}

/// The run that is resumed from each of them, with hooks that keep state.
fn run(folder: &Path, epochs: u64) -> Result<u64> {
    let hook = Checkpoint::new(folder).keep_last(1).keep_best(1, "train/loss", Goal::Minimize);
    let mut trainer = builder()
        .optimizer(AdamW::new(0.01))
        .epochs(epochs)
        .max_steps(epochs)
        .hook(hook)
        .hook(EarlyStopping::new("train/loss", Goal::Minimize))
        .hook(LrSchedule::new(Cosine::to(0.0)))
        .hook(ReduceOnPlateau::new("train/loss", Goal::Minimize))
        .allow_inexact_resume()
        .resume("auto")
        .build()?;
    trainer.fit(&mut model::rows(4), None).map(|summary| summary.counters.batches_seen)
}

/// The number of manifests. `make soak` tries 100,000.
fn cases() -> usize {
    std::env::var("TRAINER_HOSTILE").map_or(4_000, |cases| cases.parse().unwrap())
}

/// Every `of`-th case, from this one on.
fn some(nth: usize, of: usize) {
    // In memory where that is possible: each case that is accepted syncs a dozen files.
    let memory = Path::new("/dev/shm");
    let name = format!("trainer-tests-{}-hostile-{nth}", std::process::id());
    let outside = if memory.is_dir() { memory.join(name) } else { scratch(&name) };
    let [folder, template, precious] = ["run", "template", "precious"].map(|name| outside.join(name));
    let inner = folder.join("precious");
    for folder in [&precious, &inner] {
        fs::create_dir_all(folder).unwrap();
        for name in ["manifest.json", "model.safetensors", "data.csv"] {
            fs::write(folder.join(name), "precious").unwrap();
        }
    }
    run(&template, 2).unwrap();
    let newest = checkpoint::newest(&template).unwrap();
    let own = folder.join(newest.file_name().unwrap());
    let manifest: Value = serde_json::from_slice(&fs::read(newest.join("manifest.json")).unwrap()).unwrap();
    let mut all = Vec::new();
    places(&manifest, &mut Vec::new(), &mut all);
    assert!(all.len() > 100, "{}", all.len());

    let before = (tree(&precious), tree(&inner));
    let mut guard = Guard::watch(&[&outside, &precious, &inner]);
    let (mut random, mut accepted, mut resumed) = (Random(0x9e37_79b9_7f4a_7c15 ^ (nth as u64 + 1)), 0, 0);
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
        let mut case = change(&mut random, &mut json, &all, &precious.display().to_string());
        if random.below(4) == 0 {
            let mut now = Vec::new();
            places(&json, &mut Vec::new(), &mut now);
            case += &change(&mut random, &mut json, &now, "../precious");
        }
        write(&own.join("manifest.json"), json, random.below(50) == 0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let is_accepted = checkpoint::verify(&own).is_ok();
            if is_accepted {
                accepted += 1;
                resumed += usize::from(run(&folder, 3).is_ok());
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
fn no_manifest_touches_anything_outside_of_its_folder_or_panics() {
    std::thread::scope(|scope| {
        for nth in 0..2 {
            scope.spawn(move || {
                tch::set_num_threads(1);
                some(nth, 2);
            });
        }
    });
}
