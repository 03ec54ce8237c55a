//! Folders that someone else made: links, pipes and devices at every name, hostile texts, numbers
//! at their limits, and files that are too long or too deep.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "tests write the folders that the command reads")]

#[allow(dead_code, reason = "the other tests use them")]
mod support;

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value as Json, json};
use support::{Scratch, measure, run_file};
use trainer_formats::run::{Goal, Live, RunFile, Status};
use trainer_formats::tape::{Entry, EntryKind, MAGIC, Position, Process, Record};

/// Runs the command with 1 GiB of memory and 10 minutes, which only a hang takes, and returns its
/// output.
fn limited(scratch: &Scratch, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["600", "sh", "-c", "ulimit -v 1048576; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_trainer")]);
    command.args(arguments).current_dir(&scratch.0).env("COLUMNS", "100").env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs the command. It must end by itself, without a panic.
fn survives(scratch: &Scratch, arguments: &[&str], case: &str) -> String {
    let output = limited(scratch, arguments);
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let code = output.status.code();
    assert!(matches!(code, Some(0..=2)), "{case}: {arguments:?}: {:?}: {text:.2000}", output.status);
    text
}

/// The commands that read the run `a`.
const READERS: [&[&str]; 7] = [
    &["runs", "."],
    &["show", "a"],
    &["compare", "a", "b", "--all"],
    &["diff", "a", "b"],
    &["report", "a", "b", "-o", "out.html"],
    &["show", "a", "--json"],
    &["runs", ".", "--json"],
];

const HEADER: &str = "optimizer_steps,epoch,batches_seen,samples_seen,time,phase,span,name,value\n";

fn tape() -> Vec<u8> {
    let entry = Entry {
        kind: EntryKind::Hook,
        name: "own::hook".to_owned(),
        owner: "own::hook".to_owned(),
        moment: "after_step".to_owned(),
        place: "src/main.rs:1".to_owned(),
        package: String::new(),
    };
    let position = Position {
        batches_seen: u64::MAX,
        epoch: u64::MAX,
        phase: "train".to_owned(),
        ..Position::default()
    };
    let records = [
        Record::Process(Process { rank: (0, 1), ..Process::default() }),
        Record::Name("value".to_owned()),
        Record::Entry(entry),
        Record::At(position),
        Record::Changed(0, vec![(0, 1)]),
    ];
    let mut bytes = MAGIC.to_vec();
    records.iter().for_each(|record| bytes.extend(rmp_serde::to_vec_named(record).unwrap()));
    bytes
}

/// Returns a folder with two runs that have every file that the command reads.
fn runs(name: &str) -> (Scratch, RunFile) {
    let scratch = Scratch::new(name);
    let mut file = run_file(60, 0.1, 8, Status::Running);
    file.process = None;
    measure(&mut file, "valid/loss", Some(Goal::Minimize), &[0.5, 0.25]);
    for run in ["a", "b"] {
        scratch.run(run, &file);
        scratch.write(&format!("{run}/live.json"), &Live::new("fit", "train").to_text().unwrap());
        scratch
            .write(&format!("{run}/values.csv"), &format!("{HEADER}1,0,1,8,1.0,valid,pass,valid/loss,0.5\n"));
        scratch.write(&format!("{run}/report.jsonl"), "");
        fs::write(scratch.0.join(run).join("run.tape"), tape()).unwrap();
    }
    (scratch, file)
}

#[derive(Clone, Copy, Debug)]
enum Planted {
    Link,
    LinkToNothing,
    Device,
    Fifo,
    Folder,
}

const PLANTED: [Planted; 5] =
    [Planted::Link, Planted::LinkToNothing, Planted::Device, Planted::Fifo, Planted::Folder];

fn plant(path: &Path, what: Planted) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
    match what {
        Planted::Link => {
            symlink(path.ancestors().find(|own| own.join("mine").exists()).unwrap().join("mine"), path)
        }
        Planted::LinkToNothing => symlink(path.with_file_name("not-there"), path),
        Planted::Device => symlink("/dev/zero", path),
        Planted::Fifo => {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
            Ok(())
        }
        Planted::Folder => fs::create_dir(path),
    }
    .unwrap();
}

fn is_planted(path: &Path, what: Planted) -> bool {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    match what {
        Planted::Link | Planted::LinkToNothing | Planted::Device => kind.is_symlink(),
        Planted::Fifo => kind.is_fifo(),
        Planted::Folder => kind.is_dir(),
    }
}

const MINE: &str = "a year of work";

#[test]
fn nothing_but_a_regular_file_is_read_in_a_run() {
    for name in ["run.json", "live.json", "values.csv", "records.jsonl", "report.jsonl", "run.tape"] {
        for what in PLANTED {
            let (scratch, _) = runs("hostile-read");
            scratch.write("mine", MINE);
            if name == "records.jsonl" {
                fs::remove_file(scratch.0.join("a/values.csv")).unwrap();
            }
            plant(&scratch.0.join("a").join(name), what);
            for arguments in READERS {
                let text = survives(&scratch, arguments, &format!("{what:?} at {name}"));
                assert!(!text.contains(MINE), "{text}");
            }
            assert!(is_planted(&scratch.0.join("a").join(name), what));
            let html = fs::read_to_string(scratch.0.join("out.html")).unwrap_or_default();
            assert!(!html.contains(MINE));
        }
    }
}

#[test]
fn nothing_is_written_through_a_link_or_into_what_is_not_ours() {
    let program = "#!/bin/sh\nmkdir -p \"$TRAINER_RUN_FOLDER\"\ncp finished.json \"$TRAINER_RUN_FOLDER/run.json\"\necho done\n";
    // The names that `sweep` and `report` write, and those under which they write them first.
    let names = [
        ("runs/my/.trainer-lock", true),
        ("runs/my/sweep.json", true),
        ("runs/my/.writing-sweep.json-1", false),
        ("runs/my/.writing-sweep.json-2", false),
        ("runs/my/0001.log", true),
        ("runs/my/0001", true),
        ("runs/my", true),
        ("report.html", true),
        (".writing-report.html-1", false),
    ];
    for (name, is_refused) in names {
        for what in PLANTED {
            let case = format!("{what:?} at {name}");
            let (scratch, mut file) = runs("hostile-write");
            file.status = Status::Finished;
            scratch.write("mine", MINE);
            scratch.write("finished.json", &file.to_text().unwrap());
            scratch.write("my.toml", "[parameters]\nlr = [0.1]\n");
            scratch.write("program", program);
            fs::set_permissions(scratch.0.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
            let path = scratch.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            plant(&path, what);
            let is_report = name.ends_with("html") || name.ends_with("html-1");
            let arguments: &[&str] =
                if is_report { &["report", "a"] } else { &["sweep", "my.toml", "--", "./program"] };
            let output = limited(&scratch, arguments);
            let code = output.status.code();
            assert!(matches!(code, Some(0..=2)), "{case}: {output:?}");
            // An empty folder may be a run folder.
            let is_usable = matches!((name, what), ("runs/my/0001" | "runs/my", Planted::Folder));
            assert_eq!(code != Some(0), is_refused && !is_usable, "{case}: {output:?}");
            assert!(is_planted(&path, what), "{case}");
            assert_eq!(fs::read_to_string(scratch.0.join("mine")).unwrap(), MINE, "{case}");
            assert!(!path.with_file_name("not-there").exists(), "{case}");
        }
    }
}

/// Texts that would move the cursor, clear the screen, set its title, print over a line, reverse
/// text, hide it, or style what follows.
const HOSTILE: [&str; 10] = [
    "\u{1b}[2J\u{1b}[H",
    "\u{1b}]0;title\u{7}",
    "\u{1b}[31mred",
    "\u{9b}2J",
    "over\rwritten",
    "\u{8}\u{8}\u{7f}",
    "\u{202e}reversed\u{2066}",
    "\u{200b}\u{feff}\u{e0041}",
    "\u{fdee}\u{fdef}\u{fdd0}",
    "\u{0}\u{1b}",
];

/// Whether a text has nothing but what this command itself writes to a terminal.
fn is_clean(text: &str) -> bool {
    let mut text = text.to_owned();
    // The styles of this command.
    for style in
        ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[36m"]
    {
        text = text.replace(style, "");
    }
    let is_hidden = |letter: char| {
        letter.is_control() && !matches!(letter, '\n' | '\t')
            || matches!(letter, '\u{200b}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fdd0}'..='\u{fdef}' | '\u{e0000}'..='\u{e007f}')
    };
    !text.contains(is_hidden)
}

/// Replaces each string below a value by this text, and puts it into each key of a map of free
/// names.
fn infest(value: &mut Json, hostile: &str, depth: usize) {
    match value {
        Json::String(text) if depth > 0 => text.push_str(hostile),
        Json::Array(all) => all.iter_mut().for_each(|own| infest(own, hostile, depth + 1)),
        Json::Object(fields) => fields.values_mut().for_each(|own| infest(own, hostile, depth + 1)),
        _ => {}
    }
}

#[test]
fn no_text_of_a_file_reaches_the_terminal_raw() {
    for hostile in HOSTILE {
        let (scratch, file) = runs("hostile-text");
        for run in ["a", "b"] {
            let mut json = serde_json::to_value(&file).unwrap();
            for (name, value) in [
                ("error", json!(format!("e{hostile}"))),
                ("stopped", json!(format!("s{hostile}\nsecond"))),
                ("warnings", json!([format!("w{hostile}")])),
                ("roll_backs", json!([format!("r{hostile}")])),
                ("resumed", json!([format!("t{hostile}")])),
                ("device", json!(format!("d{hostile}"))),
                ("command_line", json!([format!("c{hostile}")])),
                ("started", json!(format!("2026{hostile}"))),
                ("launcher", json!(format!("l{hostile}"))),
                ("origin", json!({ "run": format!("o{hostile}"), "batches": 1 })),
                ("hooks", json!([format!("h{hostile} at m{hostile}"), format!("{run}{hostile} at m")])),
                ("status", json!("failed")),
            ] {
                json[name] = value;
            }
            infest(&mut json["hyperparameters"], hostile, 1);
            json["hyperparameters"][format!("name{hostile}")] =
                json!({ format!("k{hostile}"): [hostile, run] });
            let metric = json["metrics"]["valid/loss"].clone();
            json["metrics"][format!("valid/{hostile}")] = metric;
            scratch.write(&format!("{run}/run.json"), &json.to_string());
            fs::write(scratch.0.join(run).join(hostile.replace(['\0', '/'], "_")), "").unwrap();
        }
        // Each style is forced, as on a terminal.
        let printed = |arguments: &[&str]| {
            let mut command = scratch.command(100, arguments);
            let output = command.env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR").output().unwrap();
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        };
        for arguments in READERS {
            let text = printed(arguments);
            assert!(is_clean(&text), "{hostile:?} {arguments:?}: {text:?}");
        }
        let show = printed(&["show", "a"]);
        if hostile.contains('\u{1b}') {
            assert!(show.contains("\\u{1b}"), "visible instead of removed: {show}");
        }
        let value: Json = serde_json::from_str(printed(&["show", "a", "--json"]).trim()).unwrap();
        assert_eq!(value["error"], format!("e{hostile}"), "JSON keeps the text");
        // Damaged files, whose content is in the error, and names on the command line.
        scratch.write("a/values.csv", &format!("{HEADER}{hostile},0,1,8,1.0,valid,pass,valid/loss,0.5\n"));
        scratch.write("b/run.json", &json!({ "format": format!("f{hostile}") }).to_string());
        scratch.write("bad.toml", &format!("[parameters]\nlr = {hostile}\n").replace('\0', ""));
        let name = hostile.replace('\0', "");
        for arguments in [
            &["show", &*name][..],
            &["runs", ".", "--sort", &name],
            &["runs", ".", "--filter", &name],
            &["sweep", "bad.toml", "--", "true"],
        ] {
            let text = printed(arguments);
            assert!(is_clean(&text), "{hostile:?} {arguments:?}: {text:?}");
        }
        for arguments in READERS {
            let text = printed(arguments);
            assert!(is_clean(&text), "{hostile:?} {arguments:?}: {text:?}");
        }
    }
}

/// Returns a copy of a value for each of its numbers and strings, with this in its place.
fn replaced(value: &Json, with: &Json) -> Vec<Json> {
    let inner = |pairs: Vec<(Json, &Json)>| {
        let mut all = Vec::new();
        for (key, own) in pairs {
            for changed in replaced(own, with) {
                let mut copy = value.clone();
                match &key {
                    Json::String(name) => copy[name.as_str()] = changed,
                    key => copy[usize::try_from(key.as_u64().unwrap_or(0)).unwrap_or(0)] = changed,
                }
                all.push(copy);
            }
        }
        all
    };
    match value {
        Json::Object(fields) => inner(fields.iter().map(|(name, own)| (json!(name), own)).collect()),
        Json::Array(all) => inner(all.iter().enumerate().map(|(nth, own)| (json!(nth), own)).collect()),
        _ => vec![with.clone()],
    }
}

#[test]
fn no_number_or_text_in_a_file_makes_a_command_panic() {
    let (scratch, file) = runs("hostile-numbers");
    let numbers = [
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!("NaN"),
        json!("-inf"),
        json!(null),
        json!("2026-03-00T00:00:00Z"),
        json!({}),
    ];
    let documents = [
        ("run.json", serde_json::to_value(&file).unwrap()),
        ("live.json", {
            let mut live = serde_json::to_value(Live::new("fit", "train")).unwrap();
            live["hooks"] = json!([{ "name": "a", "moment": "b", "time": { "calls": 1, "nanos": 2 } }]);
            live["logged"] = json!([{ "name": "train/loss", "hook": 0, "value": 1.0 }]);
            live
        }),
    ];
    for (name, document) in &documents {
        let original = fs::read(scratch.0.join("a").join(name)).unwrap();
        for (nth, with) in numbers.iter().enumerate() {
            for (at, changed) in replaced(document, with).into_iter().enumerate() {
                scratch.write(&format!("a/{name}"), &changed.to_string());
                let arguments = READERS[(at + nth) % READERS.len()];
                survives(&scratch, arguments, &format!("{name}: {changed}"));
                survives(&scratch, READERS[4], &format!("{name}: {changed}"));
            }
        }
        for length in (0..original.len()).step_by(original.len() / 12 + 1) {
            fs::write(scratch.0.join("a").join(name), &original[..length]).unwrap();
            READERS.iter().for_each(|arguments| {
                drop(survives(&scratch, arguments, &format!("{name} of {length} bytes")));
            });
        }
        fs::write(scratch.0.join("a").join(name), original).unwrap();
    }
    let columns = ["1", "0", "1", "8", "1.0", "valid", "pass", "valid/loss", "0.5"];
    let cells = [
        "18446744073709551615",
        "-1",
        "1e400",
        "NaN",
        "-inf",
        "",
        "\"",
        "1e308",
        "valid/x/18446744073709551615/18446744073709551615",
    ];
    for column in 0..columns.len() {
        for cell in cells {
            let mut row = columns;
            row[column] = cell;
            scratch.write(
                "a/values.csv",
                &format!("{HEADER}{}\n{}\n{}\n", columns.join(","), row.join(","), columns.join(",")),
            );
            for arguments in [READERS[1], READERS[4]] {
                survives(&scratch, arguments, &format!("values.csv: {row:?}"));
            }
        }
    }
    fs::remove_file(scratch.0.join("a/values.csv")).unwrap();
    let record = json!({ "optimizer_steps": 1, "epoch": 0, "batches_seen": 1, "samples_seen": 8, "time": 1.0, "phase": "valid", "span": "pass", "valid/loss": 0.5, "valid/image": { "png": "AAAA", "width": 4, "height": 4 }, "valid/text": "text" });
    for with in &numbers {
        for changed in replaced(&record, with) {
            scratch.write("a/report.jsonl", &format!("{record}\n{changed}\n{record}\n"));
            for arguments in [READERS[1], READERS[4]] {
                survives(&scratch, arguments, &format!("report.jsonl: {changed}"));
            }
        }
    }
    let bytes = tape();
    for at in MAGIC.len()..bytes.len() {
        for byte in [0xdf, 0xc6] {
            let mut changed = bytes.clone();
            changed[at] = byte;
            changed.splice(at + 1..at + 1, [0xff; 4]);
            fs::write(scratch.0.join("a/run.tape"), changed).unwrap();
            survives(&scratch, READERS[3], &format!("run.tape: {byte:x} at {at}"));
        }
    }
}

#[test]
fn files_that_are_too_long_or_too_deep_are_refused_within_bounded_memory() {
    let (scratch, file) = runs("hostile-size");
    let sparse = |name: &str, length: u64| {
        let opened = fs::File::create(scratch.0.join("a").join(name)).unwrap();
        opened.set_len(length).unwrap();
    };
    for name in ["values.csv", "report.jsonl", "live.json", "run.tape", "run.json"] {
        let path = scratch.0.join("a").join(name);
        let original = fs::read(&path).unwrap();
        for length in [1 << 27, 1 << 40] {
            sparse(name, length);
            READERS.iter().for_each(|arguments| {
                drop(survives(&scratch, arguments, &format!("{name} of {length} bytes")));
            });
        }
        fs::write(&path, original).unwrap();
    }
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = |depth| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        for depth in [100, 1_000_000] {
            let mut text = file.to_text().unwrap();
            text = text.replacen(
                "\"hyperparameters\": {",
                &format!("\"hyperparameters\": {{\"deep\": {},", deep(depth)),
                1,
            );
            scratch.write("a/run.json", &text);
            READERS
                .iter()
                .for_each(|arguments| drop(survives(&scratch, arguments, &format!("depth {depth}"))));
            scratch.write("a/report.jsonl", &format!("{{\"a/b\":{}}}\n", deep(depth)));
            survives(&scratch, READERS[4], &format!("records of depth {depth}"));
        }
    }
    // Many hooks and settings: nothing takes a time that grows with the square of their number.
    let mut json = serde_json::to_value(&file).unwrap();
    json["hooks"] = (0..100_000).map(|nth| format!("h{nth} at m")).collect();
    json["hyperparameters"] =
        (0..30_000).map(|nth| (format!("s{nth}"), json!(nth))).collect::<serde_json::Map<_, _>>().into();
    scratch.write("a/run.json", &json.to_string());
    READERS.iter().for_each(|arguments| drop(survives(&scratch, arguments, "many hooks and settings")));
}
