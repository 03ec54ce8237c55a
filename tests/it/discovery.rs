//! Which of the linked hooks a trainer takes.

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
fn linked_in_means_active_unless_told_otherwise() {
    assert_eq!(crates(&builder().build().unwrap()), ["it", "plugin"]);
    assert!(crates(&builder().discover(Discover::None).build().unwrap()).is_empty());
    assert_eq!(crates(&builder().discover(Discover::crates(["plugin"])).build().unwrap()), ["plugin"]);

    // A crate that has only blocks of hooks is linked too.
    builder().discover(Discover::None).require_crate("trainer").build().unwrap();

    let without = builder().discover(Discover::crates(["plugin"])).without("plugin::nested::early");
    let table = without.build().unwrap().describe_hooks();
    assert_eq!(
        table.rows().map(|row| row.hook.as_str()).collect::<Vec<_>>(),
        ["plugin::after_epoch", "plugin::shadowed::after_fit"]
    );
}

#[test]
fn a_crate_that_nothing_names_is_missed_with_the_line_to_write() {
    // `unnamed` stands in Cargo.toml, but no line of this program names it.
    let error = builder().require_crate("plugin").require_crate("unnamed").build().unwrap_err().to_string();
    assert_eq!(
        error,
        "the trainer cannot be built: no hook of the required crate `unnamed` is linked into this program; \
         Rust links a crate only when the program names it: write `use unnamed as _;` in it"
    );
}

#[test]
fn names_that_match_nothing_are_reported_together_with_what_was_meant() {
    let error = builder()
        .discover(Discover::crates(["plugins", "plugin"]))
        .without("plugin::nested::earl")
        .epochs(0)
        .build()
        .unwrap_err()
        .to_string();
    insta::assert_snapshot!(error, @r#"
    the trainer cannot be built, for 3 reasons:
    - `.epochs(0)` would train nothing: ask for at least 1, or call `validate` or `test`
    - `.discover(…)` names the crate `plugins`, but no hook of it is linked into this program; did you mean `plugin`?
    - `.without("plugin::nested::earl")` matches no hook of this trainer; did you mean `plugin::nested::early`?
    "#);
}
