//! Discovery: which of the linked hooks a trainer uses.

use trainer::prelude::*;

use crate::model;

fn builder() -> trainer::TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task()).optimizer(Sgd::new(0.1))
}

fn crates(trainer: &Trainer<impl Task>) -> Vec<&'static str> {
    let table = trainer.describe_hooks();
    let mut crates: Vec<_> = table.rows().map(|row| row.krate).collect();
    crates.sort_unstable();
    crates.dedup();
    crates
}

#[test]
fn linked_hooks_are_active_unless_excluded() {
    assert_eq!(crates(&builder().build().unwrap()), ["it", "plugin", "trainer"]);
    assert!(crates(&builder().discover(Discover::None).build().unwrap()).is_empty());
    let plugin = builder().discover(Discover::crates(["plugin"]));
    assert_eq!(crates(&plugin.build().unwrap()), ["plugin", "trainer"]);

    // A crate whose hooks are all stateful also counts as linked.
    builder().discover(Discover::None).require_crate("trainer").build().unwrap();

    let without = builder().discover(Discover::crates(["plugin"])).without("plugin::nested::early");
    let without = without.without("trainer::hooks::Checkup");
    let table = without.build().unwrap().describe_hooks();
    assert_eq!(
        table.rows().map(|row| row.hook.as_str()).collect::<Vec<_>>(),
        ["plugin::after_epoch", "plugin::shadowed::after_fit"]
    );
}

#[test]
fn require_crate_reports_an_unlinked_crate_with_the_line_to_add() {
    // `unnamed` is a dependency in Cargo.toml, but no code of this program names it.
    let error = builder().require_crate("plugin").require_crate("unnamed").build().unwrap_err().to_string();
    assert_eq!(
        error,
        "the trainer cannot be built: no hook of the required crate `unnamed` is linked into this program; \
         Rust links a crate only if the program names it: write `use unnamed as _;` in the program. If that line is \
         there, check that a hook of the crate is compiled (its `cfg` and features), and that a program that links Rust \
         code as a static library links all of it (`-Wl,--whole-archive`; on macOS `-Wl,-force_load`). A library that is \
         loaded at run time cannot add hooks"
    );
}

#[test]
fn require_crate_distinguishes_a_program_from_the_library_of_its_package() {
    // The program and the library are both called `tests`, and the program does not name the
    // library.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tests")).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim_end(),
        "the trainer cannot be built: no hook of the required crate `tests` is linked into this program; \
         only hooks of the binary `tests` are linked, not those of its library: write `use tests as _;` in the binary"
    );
}

#[test]
fn crates_can_be_selected_by_version() {
    let version = "1.2.3"; // the version of `tests/plugin`
    let of_plugin = builder().discover(Discover::crates([format!("plugin@{version}")]));
    let trainer = of_plugin.require_crate(format!("plugin@{version}")).build().unwrap();
    assert_eq!(crates(&trainer), ["plugin", "trainer"]);
    let without = builder().without(format!("plugin@{version}::nested::early")).build().unwrap();
    assert_eq!(without.describe_hooks().at("before_step"), ["trainer::hooks::Checkup"]);

    let error = builder().require_crate("plugin@9.9.9").build().unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "the trainer cannot be built: no hook of the required crate `plugin@9.9.9` is linked into this program; \
             linked: `plugin@{version}`"
        )
    );
}

#[test]
fn without_suggests_the_full_path_of_a_hook() {
    let error = builder().without("early").without("erly").build().unwrap_err().to_string();
    insta::assert_snapshot!(error, @r#"
    the trainer cannot be built, for 2 reasons:
    - `.without("early")` matches no hook of this trainer; did you mean `plugin::nested::early`?
    - `.without("erly")` matches no hook of this trainer; did you mean `plugin::nested::early`?
    "#);
}

#[test]
fn all_names_that_match_nothing_are_reported_with_suggestions() {
    let error = builder()
        .discover(Discover::crates(["plugins", "plugin"]))
        .without("plugin::nested::earl")
        .epochs(0)
        .build()
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(error, @r#"
    the trainer cannot be built, for 3 reasons:
    - `.epochs(0)` trains nothing: expected at least 1; to evaluate only, call `validate` or `test`
    - `.discover(…)` names the crate `plugins`, but no hook of that crate is linked into this program; did you mean `plugin`?
    - `.without("plugin::nested::earl")` matches no hook of this trainer; did you mean `plugin::nested::early`?
    "#);
}
