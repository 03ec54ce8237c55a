//! `trainer new` and `trainer doctor`. What a project does is tested by the package `template`,
//! which is made of the same files.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests read and write projects")]

#[allow(dead_code, reason = "shared by the tests of the command")]
mod support;

use std::fs;
use std::path::Path;

use support::{Scratch, objects, text};

/// The root of the workspace.
fn clone() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn a_project_has_its_own_names_and_the_paths_of_the_clone() {
    let scratch = Scratch::new("new");
    let output =
        scratch.command(80, &["new", "my-run", "--clone", clone().to_str().unwrap(), "--json"]).output();
    assert_eq!(objects(&text(&output.unwrap().stdout))[0]["folder"], "my-run");
    let read = |path: &str| fs::read_to_string(scratch.0.join("my-run").join(path)).unwrap();
    for path in [
        "Cargo.toml",
        "hooks/Cargo.toml",
        "src/lib.rs",
        "src/main.rs",
        "tests/program.rs",
        "hooks/src/lib.rs",
    ] {
        assert!(!read(path).contains("template"), "{path}");
    }
    assert!(
        read("src/lib.rs").contains("use my_run_hooks as _;") && read("README.md").starts_with("# my-run\n")
    );
    let workflow = read(".github/workflows/test.yml");
    assert!(workflow.contains("key: libtorch-2.13.0\n") && workflow.contains("\n  LIBRARY: "), "{workflow}");
    assert!(!workflow.contains("LIBRARY_URL"), "{workflow}");
    // What the workflow looks for in the manifest is there.
    assert!(
        workflow.contains("'s|^trainer = { path = .*|")
            && read("Cargo.toml").contains("\ntrainer = { path = ")
    );
    assert!(read("hooks.lock").contains("my_run_hooks::gradient_norm | &"));
    let trainer = clone().canonicalize().unwrap().join("trainer");
    assert!(read("Cargo.toml").contains(&format!("trainer = {{ path = {:?} }}", trainer.to_str().unwrap())));
    assert!(read(".cargo/config.toml").starts_with("[env]\nLIBTORCH = \"/"));

    for (arguments, part) in [
        (["new", "my-run", "--clone", "."], "no clone of `trainer`"),
        (["new", "my-run", "--clone", clone().to_str().unwrap()], "my-run: this folder exists already"),
        (["new", "My-Run", "--clone", clone().to_str().unwrap()], "`My-Run` cannot be the name of a project"),
        (["new", "a/trainer", "--clone", clone().to_str().unwrap()], "cannot be the name of a project"),
    ] {
        let error = scratch.fail(&arguments);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_lock_of_a_project_is_that_of_the_tested_program() {
    let [written, tested] = ["trainer/cli/src/new/template/hooks.lock", "tests/template/hooks.lock"]
        .map(|path| fs::read_to_string(clone().join(path)).unwrap());
    assert_eq!(written, tested, "copy tests/template/hooks.lock to trainer/cli/src/new/template/");
}

#[test]
fn the_doctor_names_what_is_wrong_and_how_to_mend_it() {
    let scratch = Scratch::new("doctor");
    let doctor = |folder: &str, changes: &[(&str, Option<&str>)]| {
        let mut command = scratch.command(80, &["--json", "doctor", folder]);
        for launcher in
            ["RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"]
        {
            command.env_remove(launcher);
        }
        command.env_remove("LIBTORCH").env_remove("CARGO_HOME").env_remove("TORCHELASTIC_RUN_ID");
        command.env_remove("LIBTORCH_USE_PYTORCH").env("HOME", scratch.0.join("home"));
        for (name, value) in changes {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = command.output().unwrap();
        let findings = objects(&text(&output.stdout));
        assert_eq!(
            output.status.code(),
            Some(i32::from(findings.iter().any(|finding| !finding["remedy"].is_null())))
        );
        findings
    };
    let finding = |findings: &[serde_json::Value], what: &str| {
        let found = findings.iter().find(|finding| finding["what"] == what).unwrap();
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (text("found"), text("remedy"))
    };

    let (found, remedy) = finding(&doctor(".", &[]), "libtorch");
    assert_eq!(found, "named nowhere");
    assert!(remedy.starts_with("run `trainer libtorch`"), "{remedy}");
    for (folder, version) in [("right", "2.13.0+cpu\n"), ("wrong", "2.4.0\n"), ("half", "2.13.0\n")] {
        scratch.write(&format!("{folder}/libtorch/build-version"), version);
        scratch.write(&format!("{folder}/libtorch/include/ATen/ATen.h"), "");
    }
    for folder in ["right", "wrong"] {
        for library in ["libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"] {
            scratch.write(&format!("{folder}/libtorch/lib/{library}"), "");
        }
    }
    scratch.write("right/.cargo/config.toml", "include = [{ path = \"more.toml\", optional = true }]\n");
    scratch.write("right/.cargo/more.toml", "[env]\nLIBTORCH = { value = \"libtorch\", relative = true }\n");
    scratch.write("right/inside/Cargo.toml", "");
    let (found, remedy) = finding(&doctor("right/inside", &[]), "libtorch");
    assert!(found.starts_with("2.13.0+cpu in ") && remedy.is_empty(), "{found} {remedy}");
    let right = format!("[env]\nLIBTORCH = {:?}\n", scratch.0.join("right/libtorch"));
    scratch.write("old/.cargo/config", &right); // without `.toml`, as before 2020
    let (found, _) = finding(&doctor("old", &[]), "libtorch");
    assert!(found.ends_with("old/.cargo/config"), "{found}");
    for (name, found, remedy) in [
        ("wrong/libtorch", "2.4.0 in ", "version 2.13.0 is needed"),
        ("half/libtorch", "no `lib/", "run `trainer libtorch`"),
        ("nothing", "no `build-version` in ", "run `trainer libtorch`"),
    ] {
        let libtorch = scratch.0.join(name);
        let (is_found, does) = finding(&doctor(".", &[("LIBTORCH", libtorch.to_str())]), "libtorch");
        assert!(is_found.starts_with(found) && does.starts_with(remedy), "{is_found} {does}");
    }
    for relative in ["", "right/libtorch"] {
        let (found, remedy) = finding(&doctor(".", &[("LIBTORCH", Some(relative))]), "libtorch");
        assert!(found.contains("is no absolute path") && remedy.starts_with("run "), "{found} {remedy}");
    }
    scratch.write("home/.cargo/config.toml", &right);
    let (found, _) = finding(&doctor(".", &[]), "libtorch");
    assert!(found.ends_with("home/.cargo/config.toml"), "{found}");
    // Python is not there.
    let python = [("LIBTORCH_USE_PYTORCH", Some("1")), ("PATH", Some("/nowhere"))];
    let (found, remedy) = finding(&doctor(".", &python), "libtorch");
    assert!(
        found.contains("no libtorch of PyTorch") && remedy.contains("pip install torch==2.13.0"),
        "{found}"
    );
    assert!(scratch.fail(&["doctor", "missing"]).contains("this is not a folder"));
    scratch.write("broken/.cargo/config.toml", "[env\n");
    let output = scratch.command(80, &["doctor", "broken"]).env_remove("LIBTORCH").output().unwrap();
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("config.toml"), "{output:?}");

    let (found, remedy) = finding(&doctor(".", &[("CXX", Some("no-such-compiler"))]), "C++ compiler");
    assert!(found.contains("no-such-compiler") && remedy.contains("apt install g++"), "{found} {remedy}");
    let (_, remedy) = finding(&doctor(".", &[("CXX", Some("env LC_ALL=C rustc"))]), "C++ compiler");
    assert_eq!(remedy, "", "a variable may have a program before the compiler");
    let (found, remedy) = finding(&doctor(".", &[("PATH", Some("/nowhere"))]), "Rust");
    assert!(found.contains("no `rustc`") && remedy.contains("rustup.rs"), "{found} {remedy}");
    let (found, remedy) = finding(&doctor(".", &[("RANK", Some("0"))]), "launcher");
    assert!(found == "RANK set" && remedy.contains("unset RANK"), "{found} {remedy}");
}
