//! What the user has at the path of a file of a run is not changed, read or followed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use trainer::Summary;
use trainer::hooks::Checkpoint;
use trainer::loggers::{Csv, JsonLines, MlFlow, Report, TensorBoard, ToFile, Wandb};
use trainer::prelude::*;

use crate::model::{self, builder};
use crate::support::{cancelled_at, scratch, tree};

/// Starts a server that answers requests as an MLflow server does, after `before` was called with
/// the path of the request. Returns its address.
fn server(before: impl Fn(&str) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let before = Arc::new(before);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let before = Arc::clone(&before);
            thread::spawn(move || while answer(stream.as_ref().unwrap(), &*before).is_some() {});
        }
    });
    address
}

/// Answers one request; `None` if the connection was closed.
fn answer(mut stream: &TcpStream, before: &dyn Fn(&str)) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    let mut length = 0;
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    before(&first);
    let body = r#"{"experiment":{"experiment_id":"1"},"run":{"info":{"run_id":"2"},"data":{}}}"#;
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()
}

/// Runs a fit that writes every kind of file into this folder. With `at`, it is cancelled after
/// that batch, and some rows are written after its last checkpoint.
fn run(folder: &Path, server: &str, at: Option<u64>) -> Result<Summary> {
    let rows = |record: &trainer::Record, out: &mut Vec<u8>| {
        out.extend(format!("{}\n", record.counters().optimizer_steps).bytes());
        Ok(())
    };
    let builder = cancelled_at(at, builder())
        .epochs(3)
        .record_every(Every::Steps(1))
        .run_folder(folder)
        .resume(Resume::Auto)
        .hook(Checkpoint::in_run_folder().on_cancel(false))
        .hook(trainer::hooks::Ema::new(0.9))
        .hook(Csv::new())
        .hook(JsonLines::new())
        .hook(Report::new())
        .hook(TensorBoard::new())
        .hook(Wandb::new("digits"))
        .tape(trainer::Tape::steps(2))
        .hook(ToFile::in_run_folder("rows/steps.txt", rows))
        .hook(MlFlow::new(server).wait_at_end(Duration::from_secs(10)));
    let mut trainer = builder.build()?;
    let summary = trainer.fit(&mut model::rows(8), None)?;
    trainer.save_weights(folder.join("weights.safetensors"))?;
    Ok(summary)
}

/// The files of an uninterrupted run.
const FILES: [&str; 21] = [
    ".trainer-lock",
    "checkpoints/.trainer-lock",
    "checkpoints/step-00000006/averages.safetensors",
    "checkpoints/step-00000006/history.jsonl",
    "checkpoints/step-00000006/manifest.json",
    "checkpoints/step-00000006/model.safetensors",
    "checkpoints/step-00000006/optimizer.safetensors",
    "checkpoints/step-00000006/state.safetensors",
    "events.out.tfevents.0000.trainer",
    "live.json",
    "mlflow.json",
    "mlflow.jsonl",
    "records.jsonl",
    "report.html",
    "report.jsonl",
    "rows/steps.txt",
    "run.json",
    "run.tape",
    "values.csv",
    "wandb/offline-run/run.wandb",
    "weights.safetensors",
];

/// The folders of an uninterrupted run.
const FOLDERS: [&str; 5] = ["checkpoints", "checkpoints/step-00000006", "rows", "wandb", "wandb/offline-run"];

/// What the user has at a path.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Planted {
    LinkToFile,
    LinkToFolder,
    Fifo,
    File,
    Folder,
}

const CONTENT: &str = "a year of work";

/// Puts something at a path, with the user's data outside of the folder if it is a link.
fn plant(path: &Path, what: Planted, outside: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match what {
        Planted::LinkToFile => symlink(outside.join("paper"), path).unwrap(),
        Planted::LinkToFolder => symlink(outside.join("papers"), path).unwrap(),
        Planted::Fifo => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        Planted::File => fs::write(path, CONTENT).unwrap(),
        Planted::Folder => {
            fs::create_dir(path).unwrap();
            fs::write(path.join("paper"), CONTENT).unwrap();
        }
    }
}

/// Whether what was planted is as it was, or has another name.
fn is_unchanged(path: &Path, what: Planted) -> bool {
    match what {
        Planted::LinkToFile | Planted::LinkToFolder => fs::symlink_metadata(path).unwrap().is_symlink(),
        Planted::Fifo => fs::symlink_metadata(path).unwrap().file_type().is_fifo(),
        Planted::File => {
            let content = format!("{:?}", CONTENT.as_bytes());
            tree(path.parent().unwrap()).values().any(|found| *found == content)
        }
        Planted::Folder => fs::read_to_string(path.join("paper")).is_ok_and(|found| found == CONTENT),
    }
}

#[test]
fn user_files_at_paths_that_a_run_writes_are_not_changed() {
    let root = scratch("planted");
    let address = server(|_| {});
    let outside = root.join("outside");
    fs::create_dir_all(outside.join("papers")).unwrap();
    fs::write(outside.join("papers/one"), CONTENT).unwrap();
    fs::write(outside.join("paper"), CONTENT).unwrap();
    let untouched = tree(&outside);

    // A file that a run writes is in the list.
    let folder = root.join("uninterrupted");
    fs::create_dir(&folder).unwrap();
    run(&folder, &address, None).unwrap();
    let mut written: Vec<_> = tree(&folder).into_keys().collect();
    written.sort();
    let known = FILES.iter().chain(&FOLDERS).map(|name| folder.join(name));
    let mut known: Vec<_> = known.collect();
    known.sort();
    assert_eq!(written, known);
    fs::remove_dir_all(&folder).unwrap();

    let files = FILES.iter().flat_map(|name| {
        [Planted::LinkToFile, Planted::Fifo, Planted::File, Planted::Folder].map(|what| (*name, what))
    });
    let folders = FOLDERS.iter().map(|name| (*name, Planted::LinkToFolder));
    for (name, what) in files.chain(folders) {
        for resumes in [false, true] {
            let case = format!("{what:?} at {name}, resumed: {resumes}");
            let folder = root.join("run");
            fs::create_dir(&folder).unwrap();
            // The interrupted run has one more step than its checkpoint.
            let name = if resumes { name.replace("06", "04") } else { name.to_owned() };
            let path = folder.join(&name);
            if resumes {
                assert!(run(&folder, &address, Some(5)).unwrap_err().is_cancelled(), "{case}");
                let _ = fs::remove_file(&path);
                let _ = fs::remove_dir_all(&path);
            }
            plant(&path, what, &outside);
            let (ended, end) = channel();
            let of_run = folder.clone();
            let server = address.clone();
            thread::spawn(move || {
                let result = run(&of_run, &server, None);
                let _ = ended.send(result.map(|summary| summary.warnings).map_err(|error| error.to_string()));
            });
            let Ok(result) = end.recv_timeout(Duration::from_secs(120)) else { panic!("blocked: {case}") };
            assert_eq!(tree(&outside), untouched, "{case}: {result:?}");
            assert!(is_unchanged(&path, what), "{case}: {result:?}");
            // A lock file has no content, so any regular file will do.
            let is_lock = name.ends_with(".trainer-lock") && what == Planted::File;
            assert!(is_lock || result.as_ref().map_or(true, |warnings| !warnings.is_empty()), "{case}");
            fs::remove_dir_all(&folder).unwrap();
        }
    }
    // Profiles, like the traces of `KernelProfiler`, have a numbered name if theirs is taken.
    for what in [Planted::LinkToFile, Planted::Fifo, Planted::File, Planted::Folder] {
        let path = root.join("profile.json");
        plant(&path, what, &outside);
        let mut command = crate::support::child_process("planted::profiled_child");
        let status = command.env("TRAINER_PROFILE", &path).output().unwrap();
        assert!(status.status.success(), "{status:?}");
        assert!(is_unchanged(&path, what) && root.join("profile-2.json").is_file(), "{what:?}: {status:?}");
        assert_eq!(tree(&outside), untouched);
        fs::remove_file(root.join("profile-2.json")).unwrap();
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir_all(&path);
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
#[ignore = "run by another test"]
fn profiled_child() {
    builder().build().unwrap().fit(&mut model::rows(8), None).unwrap();
}

#[test]
fn the_run_folder_may_be_a_symbolic_link() {
    let root = scratch("planted-link");
    fs::create_dir(root.join("disk")).unwrap();
    symlink(root.join("disk"), root.join("runs")).unwrap();
    run(&root.join("runs"), &server(|_| {}), None).unwrap();
    assert!(root.join("disk/values.csv").is_file());
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn an_incomplete_mlflow_file_is_moved_aside_when_the_run_is_resumed() {
    let folder = scratch("mlflow-incomplete");
    let address = server(|_| {});
    run(&folder, &address, Some(5)).unwrap_err();
    let path = folder.join("mlflow.json");
    let content = fs::read_to_string(&path).unwrap();
    fs::write(&path, &content[..content.len() / 2]).unwrap();
    let warnings = run(&folder, &address, None).unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("mlflow.json.incomplete-1")), "{warnings:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), content);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_that_does_not_answer_does_not_block_the_end_of_a_run() {
    let folder: PathBuf = scratch("mlflow-silent");
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let has_answered = Arc::new(AtomicBool::new(false));
    let answered = Arc::clone(&has_answered);
    let address = server(move |request| {
        // The values, but not the hyperparameters, which are sent before the run begins.
        if request.contains("runs/update") {
            let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(15));
            answered.store(true, Ordering::Release);
        }
    });
    let logger = MlFlow::new(&address).wait_at_end(Duration::from_millis(50));
    let mut trainer = builder().run_folder(&folder).hook(logger).build().unwrap();
    let summary = trainer.fit(&mut model::rows(8), None).unwrap();
    assert!(!has_answered.load(Ordering::Acquire));
    assert!(!summary.warnings.is_empty());
    drop(release);
    fs::remove_dir_all(&folder).unwrap();
}
