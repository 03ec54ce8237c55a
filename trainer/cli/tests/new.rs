//! `trainer new` and `trainer doctor`.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests read and write projects")]

#[allow(dead_code, reason = "shared by the tests of the command")]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

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
        "src/task.rs",
        "tests/program.rs",
        "hooks/src/lib.rs",
    ] {
        assert!(!read(path).contains("template"), "{path}");
    }
    assert!(
        read("src/lib.rs").contains("use my_run_hooks as _;") && read("README.md").starts_with("# my-run\n")
    );
    let workflow = read(".github/workflows/test.yml");
    assert!(workflow.contains("key: libtorch-2.13.0\n"), "{workflow}");
    assert!(workflow.contains("git clone --depth 1 ") && !workflow.contains("LIBRARY_URL"), "{workflow}");
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
        (["new", "match", "--clone", clone().to_str().unwrap()], "no keyword of Rust"),
    ] {
        let error = scratch.fail(&arguments);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_unknown_template_is_refused_with_the_list_and_the_nearest_name() {
    let error = Scratch::new("template").fail(&["new", "my-run", "--template", "vison"]);
    assert!(error.contains("[possible values: gpt, vision, table]") && error.contains("'vision'"), "{error}");
}

/// Each project builds without warnings and passes its tests, one of which compares a run that was
/// resumed with one that was not. `TRAINER_LOCK=update` writes the locks of the templates again.
#[test]
fn the_project_of_each_template_trains_and_passes_its_tests() {
    let scratch = Scratch::new("templates");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    for (name, template, result) in [
        ("my-spirals", "spirals", "% of the points are on the predicted arm"),
        ("x-gpt", "gpt", "perplexity of a byte: "),
        ("x-vision", "vision", "% of the shapes are named"),
        ("x-table", "table", "the estimates are off by "),
    ] {
        let mut arguments = vec!["new", name, "--clone", clone().to_str().unwrap()];
        arguments.extend(if template == "spirals" { vec![] } else { vec!["--template", template] });
        assert!(scratch.command(80, &arguments).output().unwrap().status.success());
        let project = scratch.0.join(name);
        // With the same versions and features, the library is built once, without a network.
        fs::copy(clone().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
        let manifest = fs::read_to_string(project.join("Cargo.toml")).unwrap();
        let manifest = manifest.replace(r#"["cli"]"#, r#"["cli", "csv"]"#);
        fs::write(project.join("Cargo.toml"), manifest).unwrap();
        let cargo = |arguments: &[&str]| {
            let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            command.args(arguments).current_dir(&project);
            command.env("CARGO_TARGET_DIR", target).env("CARGO_NET_OFFLINE", "true");
            let output = command.output().unwrap();
            let (out, errors) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{name}: {out}\n{errors}");
            (out, errors)
        };
        let (_, warnings) = cargo(&["test", "--workspace", "--no-run"]);
        assert!(!warnings.contains("warning: "), "{name}: {warnings}");
        cargo(&["test", "--workspace"]);
        if std::env::var_os("TRAINER_LOCK").is_some() {
            update_lock(template, name, &project);
        }
        let (out, _) = cargo(&["run", "--", "--epochs", "2"]);
        assert!(out.contains(result), "{name}: {out}");
        assert!(
            project.join("runs/0001/values.csv").is_file() && project.join("weights.safetensors").is_file()
        );
    }
}

/// Writes the lock of a project into its template.
fn update_lock(template: &str, name: &str, project: &Path) {
    let templates = clone().join("trainer/cli/src/new/template");
    let lock = fs::read_to_string(project.join("hooks.lock")).unwrap();
    let (settings, crates) = lock.split_once("\n[crates]\n").unwrap();
    let hooks = crates.split_once("\n\n").unwrap().1.replace(&name.replace('-', "_"), "template");
    let metric = hooks.split("MetricHook(").nth(1).unwrap().split(')').next().unwrap();
    let hooks = hooks.replace(&format!("MetricHook({metric})"), "MetricHook(METRIC)");
    fs::write(templates.join(template).join("settings.lock"), settings).unwrap();
    fs::write(templates.join("hooks.lock"), hooks).unwrap();
}

#[test]
fn the_files_of_projects_are_formatted() {
    let templates = clone().join("trainer/cli/src/new/template");
    let files = ["src/lib.rs", "src/main.rs", "tests/program.rs", "hooks/src/lib.rs"];
    let tasks = ["spirals/task.rs", "gpt/task.rs", "vision/task.rs", "table/task.rs"];
    for file in files.iter().chain(&tasks) {
        let mut rustfmt = Command::new("rustfmt");
        rustfmt.args(["--check", "--edition", "2024", "--config-path"]).arg(clone().join("rustfmt.toml"));
        let output = rustfmt.stdin(fs::File::open(templates.join(file)).unwrap()).output().unwrap();
        assert!(output.status.success(), "{file}: {}", text(&output.stdout));
    }
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
