//! File safety: the trainer only removes, replaces and follows files that it wrote.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use trainer::checkpoint::{self, CheckpointFolder, LoadWeights};
use trainer::hooks::Checkpoint;
use trainer::prelude::*;

use crate::model::{self, builder};
use crate::support::{scratch, sealed, tree};

/// Creates a folder `project` with files and links of the user, and beside it the folder `precious`
/// that the links point to. Returns their parent and `project`.
fn folder_with_user_files(name: &str) -> (PathBuf, PathBuf) {
    let outside = scratch(name);
    let folder = outside.join("project");
    for other in [
        ".git/objects",
        ".venv",
        "results/old",
        ".writing-step-1-2",
        "step-7",
        "step-00000001.bak",
        "precious",
    ] {
        fs::create_dir_all(folder.join(other)).unwrap();
        fs::write(folder.join(other).join("paper.pdf"), "a year of work").unwrap();
    }
    fs::create_dir_all(outside.join("precious")).unwrap();
    fs::write(outside.join("precious/data.csv"), "1,2,3").unwrap();
    fs::write(folder.join("paper.pdf"), "a year of work").unwrap();
    fs::write(folder.join("notes.txt"), "notes").unwrap();
    fs::write(folder.join(".lock"), "of another program").unwrap();
    fs::write(folder.join("step-00000002.replaced"), "a file").unwrap();
    symlink(outside.join("precious"), folder.join("link")).unwrap();
    // Links with names that the trainer generates itself.
    symlink(outside.join("precious"), folder.join(".writing-step-00000002-17")).unwrap();
    symlink(outside.join("precious"), folder.join("step-00000001.replaced")).unwrap();
    symlink(outside.join("precious"), folder.join("step-00000099")).unwrap();
    (outside, folder)
}

/// Asserts that everything in `before` is unchanged.
fn assert_untouched(before: &BTreeMap<PathBuf, String>, outside: &Path) {
    let now = tree(outside);
    for (path, content) in before {
        assert_eq!(now.get(path), Some(content), "{}", path.display());
    }
}

#[test]
fn checkpoints_leave_unrelated_files_untouched() {
    let (outside, folder) = folder_with_user_files("home");
    let before = tree(&outside);
    let hook = || Checkpoint::new(&folder).keep_last(1).keep_best(1, "train/loss", Goal::Minimize);
    let mut trainer = builder().epochs(3).hook(hook()).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    drop(trainer);
    assert_untouched(&before, &outside);
    // The leftovers of a killed process are removed, except for files that the trainer did not
    // write.
    let leftover = folder.join(".writing-step-00000009-4711");
    let annotated = folder.join(".writing-step-00000010-4711");
    for left in [&leftover, &annotated] {
        fs::create_dir(left).unwrap();
        fs::write(left.join("model.safetensors"), "half").unwrap();
    }
    fs::write(annotated.join("notes.txt"), "mine").unwrap();
    let mut trainer = builder().epochs(4).hook(hook()).resume(Resume::Auto).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert_untouched(&before, &outside);
    assert!(!leftover.exists());
    assert_eq!(tree(&annotated).len(), 1, "the notes");
    fs::remove_dir_all(&outside).unwrap();
}

/// Changes the manifest of a checkpoint and updates its hash.
pub(crate) fn forge(checkpoint: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let path = checkpoint.join("manifest.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(&path, sealed(json)).unwrap();
}

#[test]
fn paths_in_a_manifest_are_not_followed() {
    let (outside, folder) = folder_with_user_files("forged");
    let run = |epochs: u64| {
        let hook = Checkpoint::new(&folder).keep_best(1, "train/loss", Goal::Minimize);
        let mut trainer = builder().epochs(epochs).hook(hook).resume(Resume::Auto).build().unwrap();
        trainer.fit(&mut model::rows(8), None).map(|summary| summary.counters.batches_seen)
    };
    run(2).unwrap();
    let before = tree(&outside);
    let newest = checkpoint::newest(&folder).unwrap();
    let absolute = outside.join("precious").display().to_string();
    for last in
        [r#"["../precious"]"#.to_owned(), format!("[\"{absolute}\"]"), "[\"link\"]".into(), "[-1]".into()]
    {
        forge(&newest, |json| {
            json["saved"]["trainer::hooks::Checkpoint"] = format!("(last:{last},best:[])").into();
        });
        let error = model::message(&run(3).unwrap_err());
        assert!(error.contains("the value `trainer::hooks::Checkpoint` is `(last:"), "{error}");
    }
    // Steps that are not checkpoints, or do not exist, are dropped from the list.
    forge(&newest, |json| {
        json["saved"]["trainer::hooks::Checkpoint"] =
            "(last:[1,2,7,99,18446744073709551615],best:[(99,0.1)])".into();
    });
    assert_eq!(run(4).unwrap(), 8);
    let gone =
        ["model.safetensors", "optimizer.safetensors", "state.safetensors", "manifest.json", "history.jsonl"];
    for (path, content) in &before {
        let is_old =
            path.starts_with(&newest) && gone.iter().any(|name| path.ends_with(name)) || *path == newest;
        assert!(is_old || tree(&outside).get(path) == Some(content), "{}", path.display());
    }
    fs::remove_dir_all(&outside).unwrap();
}

#[test]
fn only_a_checkpoint_is_replaced() {
    let (outside, folder) = folder_with_user_files("replaced");
    let before = tree(&outside);
    let save = |target: &str| {
        let path = folder.join(target);
        let mut trainer =
            builder().on::<AfterEpoch>("save", move |cx| cx.save_checkpoint(&path)).build().unwrap();
        trainer.fit(&mut model::rows(8), None).map(drop)
    };
    for target in
        ["results/old", "notes.txt", "paper.pdf", "link", ".git", "step-7", "step-00000099", "precious", ".."]
    {
        let error = save(target).unwrap_err().to_string();
        let is_named = error.contains("not a checkpoint") || error.contains("a folder name");
        assert!(is_named, "{target}: {error}");
        assert_eq!(tree(&outside), before, "{target}");
    }
    // The temporary name of the replaced checkpoint is taken by an unrelated folder.
    save("mine").unwrap();
    fs::create_dir(folder.join("mine.replaced")).unwrap();
    fs::write(folder.join("mine.replaced/thesis.tex"), "text").unwrap();
    let with_one = tree(&outside);
    assert!(save("mine").unwrap_err().to_string().contains("mine.replaced: this folder is not a checkpoint"));
    assert_eq!(tree(&outside), with_one);
    fs::remove_dir_all(folder.join("mine.replaced")).unwrap();
    // A checkpoint is replaced, and other files in its folder are kept.
    fs::write(folder.join("mine/notes.txt"), "the good one").unwrap();
    save("mine").unwrap();
    checkpoint::verify(folder.join("mine")).unwrap();
    assert_eq!(fs::read_to_string(folder.join("mine/notes.txt")).unwrap(), "the good one");
    fs::create_dir(folder.join("empty")).unwrap();
    save("empty").unwrap();
    // A `manifest.json` of another program does not make a folder a checkpoint.
    fs::create_dir(folder.join("site")).unwrap();
    fs::write(folder.join("site/manifest.json"), "{\"name\": \"web app\"}").unwrap();
    assert!(save("site").unwrap_err().to_string().contains("not a checkpoint"));
    assert_untouched(&before, &outside);
    fs::remove_dir_all(&outside).unwrap();
}

#[test]
fn pruning_keeps_unrelated_files_inside_a_checkpoint() {
    let folder = scratch("annotated");
    let path = folder.clone();
    let mut trainer = builder()
        .epochs(3)
        .hook(Checkpoint::new(&folder))
        .on::<AfterSaveCheckpoint>("annotate", move |_| {
            let _ = fs::write(path.join("step-00000002/notes.txt"), "epoch 1");
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let left: Vec<_> = tree(&folder.join("step-00000002")).into_keys().collect();
    assert_eq!(left, [folder.join("step-00000002/notes.txt")]);
    assert!(folder.join("step-00000006/manifest.json").exists() && !folder.join("step-00000004").exists());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn save_weights_replaces_only_weights_files() {
    let (outside, folder) = folder_with_user_files("weights-file");
    let trainer = builder().build().unwrap();
    let before = tree(&outside);
    symlink(folder.join("paper.pdf"), folder.join("latest.safetensors")).unwrap();
    for target in ["paper.pdf", "notes.txt", ".git", "link", "latest.safetensors"] {
        let error = trainer.save_weights(folder.join(target)).unwrap_err().to_string();
        assert!(error.contains(target), "{error}");
    }
    assert_untouched(&before, &outside);
    let weights = folder.join("weights.safetensors");
    trainer.save_weights(&weights).unwrap();
    trainer.save_weights(&weights).unwrap();
    builder().build().unwrap().load_weights(&weights, &LoadWeights::new()).unwrap();
    // Weights can also be loaded from a checkpoint folder.
    let mut trainer = builder().hook(Checkpoint::new(folder.join("run"))).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    let report = trainer.load_weights(folder.join("run/step-00000002"), &LoadWeights::new()).unwrap();
    assert_eq!(report.loaded.len(), 4);
    fs::remove_dir_all(&outside).unwrap();
}

/// Creates a named pipe with `mkfifo`.
fn make_fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn pipes_devices_and_links_are_refused_without_reading_them() {
    let folder = scratch("special");
    let mut trainer = builder().hook(Checkpoint::new(&folder)).build().unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    drop(trainer);
    let own = folder.join("step-00000002");
    for name in
        ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.safetensors", "history.jsonl"]
    {
        let path = own.join(name);
        let content = fs::read(&path).unwrap();
        let elsewhere = folder.join("elsewhere");
        fs::write(&elsewhere, &content).unwrap();
        let refused = |make: &dyn Fn()| {
            fs::remove_file(&path).unwrap();
            make();
            let error = checkpoint::verify(&own).unwrap_err().to_string();
            let resumed = builder().resume(&*own).build().unwrap().fit(&mut model::rows(8), None);
            assert!(resumed.is_err(), "{name}");
            fs::remove_file(&path).unwrap();
            fs::write(&path, &content).unwrap();
            error
        };
        assert!(refused(&|| make_fifo(&path)).contains("found a pipe, socket or device"));
        assert!(refused(&|| symlink("/dev/zero", &path).unwrap()).contains("found a symbolic link"));
        assert!(refused(&|| symlink(&elsewhere, &path).unwrap()).contains("found a symbolic link"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(checkpoint::verify(&own).unwrap_err().to_string().contains("found a folder"));
        fs::remove_dir(&path).unwrap();
        fs::write(&path, &content).unwrap();
    }
    checkpoint::verify(&own).unwrap();
    let mut trainer = builder().build().unwrap();
    let pipe = folder.join("pipe.safetensors");
    make_fifo(&pipe);
    for path in [pipe, "/dev/zero".into(), folder.clone()] {
        let error = trainer.load_weights(&path, &LoadWeights::new()).unwrap_err().to_string();
        assert!(error.contains("expected a"), "{error}");
    }
    // A weights file may be a symbolic link, as in the caches of model hubs.
    symlink(own.join("model.safetensors"), folder.join("linked.safetensors")).unwrap();
    trainer.load_weights(folder.join("linked.safetensors"), &LoadWeights::new()).unwrap();
    // Opening a pipe as the lock file would block.
    let locked = scratch("locked-pipe");
    make_fifo(&locked.join(".trainer-lock"));
    assert!(CheckpointFolder::lock(&locked).unwrap_err().to_string().contains("expected a regular file"));
    fs::remove_dir_all(&locked).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_locked_folder_that_is_removed_is_locked_again() {
    let folder = scratch("removed");
    let path = folder.clone();
    let second = folder.clone();
    let mut trainer = builder()
        .epochs(3)
        .hook(Checkpoint::new(&folder))
        .on::<BeforeEpoch>("remove", move |cx| {
            if cx.counters().epoch == 1 {
                fs::remove_dir_all(&path).unwrap();
            }
        })
        .on::<BeforeFit>("hold", |_| {})
        .on::<AfterEpoch>(HookOptions::named("try").ord(100), move |cx| {
            // The new folder is locked like the old one.
            if cx.counters().epoch == 2 {
                assert!(CheckpointFolder::lock(&second).is_err());
            }
            Ok(())
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(8), None).unwrap();
    assert!(checkpoint::newest(&folder).is_some());
    // If another trainer locks the new folder first, the run fails.
    let path = folder.clone();
    let other = std::sync::Mutex::new(None);
    let mut trainer = builder()
        .epochs(4)
        .hook(Checkpoint::new(&folder))
        .resume(Resume::Auto)
        .allow_inexact_resume(true) // with other closures
        .on::<BeforeEpoch>("remove", move |_| {
            fs::remove_dir_all(&path).unwrap();
            *other.lock().unwrap() = Some(CheckpointFolder::lock(&path).unwrap());
        })
        .build()
        .unwrap();
    let error = trainer.fit(&mut model::rows(8), None).unwrap_err().to_string();
    assert!(error.contains("the folder is locked by another trainer"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}
