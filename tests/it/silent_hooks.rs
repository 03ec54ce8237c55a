//! Hooks that would not run, or would run twice, are reported.

use std::process::Command;

use trainer::prelude::*;

use crate::model;
use crate::support::CHILD;

mod marks {
    trainer::lifecycle! {
        within step {
            /// Something that nothing in this program fires.
            point marked in train;
            /// Something that nothing in this program runs.
            operation marking in train;
            /// Something that the hook below fires.
            point seen in train;
        }
    }
}

/// Hooks at custom moments, and hooks with intervals.
struct Idle;

#[hook]
impl Idle {
    fn at_a_point(&mut self, _: &Cx<marks::Marked>) {}

    fn after_an_operation(&mut self, _: &Cx<marks::AfterMarking>) {}

    fn at_a_point_that_is_fired(&mut self, _: &Cx<marks::Seen>) {}

    #[hook(every = 1000, only = train)]
    fn rarely(&mut self, _: &Cx<AfterStep>) {}

    #[hook(every = 1000, only = test)]
    fn in_tests(&mut self, _: &Cx<AfterStep>) {}

    #[hook(every = 2)]
    fn often(&mut self, _: &Cx<AfterStep>) {}
}

/// Fires one of the custom points.
struct Fires;

#[hook(only = train)]
impl Fires {
    fn fires(&mut self, cx: &mut Cx<AfterLoss>) -> Result<()> {
        cx.fire::<marks::Seen>()
    }
}

/// A hook at every module.
struct Activations;

#[hook]
impl Activations {
    fn activation(&mut self, _: &Cx<AfterModuleForward>) {}
}

/// Runs a test of this file in a process of its own, and returns what it prints.
fn child(name: &str) -> String {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", name, "--ignored", "--nocapture"]).env_remove(CHILD);
    let output = program.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text.into_owned()
}

#[test]
#[ignore = "run by the next test in a process of its own"]
fn a_fit_with_idle_hooks() {
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .epochs(1)
        .discover(Discover::None)
        .hook(Idle)
        .hook(Fires)
        .observe::<AfterStep>(HookOptions::named("closure").every(500), |_| {})
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(16).batch_size(4), None).unwrap();
}

#[test]
fn hooks_that_did_not_run_in_a_fit_are_listed_with_the_reason() {
    let text = child("silent_hooks::a_fit_with_idle_hooks");
    let reported: Vec<&str> =
        text.lines().filter(|line| line.contains(" did not run in this fit, because ")).collect();
    let expected = [
        ("Idle::at_a_point`", "nothing has fired `it::silent_hooks::marks::at::marked`"),
        ("Idle::after_an_operation`", "nothing has run `it::silent_hooks::marks::at::marking`"),
        ("Idle::rarely`", "its `every = 1000` never came due: there were fewer batches at `after_step`"),
        ("`closure`", "its `every = 500` never came due"),
    ];
    assert_eq!(reported.len(), expected.len(), "{reported:#?}");
    for (hook, why) in expected {
        assert!(
            reported.iter().any(|line| line.contains(hook) && line.contains(why)),
            "{hook}: {reported:#?}"
        );
    }
}

#[test]
#[ignore = "run by the next test in a process of its own, because names of modules are those of the process"]
fn a_model_without_named_modules() {
    let builder = Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let error = builder.hook(Activations).build().unwrap_err().to_string();
    assert!(
        error.contains("Activations::activation` (")
            && error.contains("no module has a name: add names with `.named(…)`"),
        "{error}"
    );
}

#[test]
fn a_hook_at_modules_needs_a_named_module() {
    child("silent_hooks::a_model_without_named_modules");
    let builder = Trainer::builder(model::named_task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
    builder.hook(Activations).build().unwrap();
}

#[test]
fn a_discovered_function_cannot_be_added_as_a_closure() {
    let builder =
        Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).discover(Discover::crates(["plugin"]));
    let error = builder.on::<BeforeStep>("early", plugin::nested::early).build().unwrap_err().to_string();
    assert!(
        error.contains("`plugin::nested::early` (")
            && error.contains("so it would run twice: remove one of the two"),
        "{error}"
    );
    let builder = Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
    builder.on::<BeforeStep>("early", plugin::nested::early).build().unwrap();
}

mod kit {
    use super::*;

    pub(super) struct Gen<T, U>(pub(super) T, pub(super) U);

    #[hook]
    impl<T, U> Gen<T, U> {
        #[doc = concat!("Counts ", stringify!(steps), ".")]
        ///
        /// More about it.
        #[hook(every = 1)]
        fn count(&mut self, _: &Cx<AfterStep>) {}
    }
}

#[test]
fn hooks_that_differ_are_shown_apart() {
    let builder = || {
        let builder = Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
        builder.hook(kit::Gen(1_u8, 2_u16)).hook(kit::Gen(1_u16, vec![1])).hook(kit::Gen(3_u8, 4_u16))
    };
    let table = builder().build().unwrap().describe_hooks();
    let names = [
        "it::silent_hooks::kit::Gen<u8, u16>::count #1",
        "it::silent_hooks::kit::Gen<u16, alloc::vec::Vec<i32>>::count",
        "it::silent_hooks::kit::Gen<u8, u16>::count #2",
    ];
    assert_eq!(table.at("after_step"), names);
    for row in table.rows() {
        assert_eq!(row.docs, "Counts steps.");
    }
    let text = table.to_string();
    assert!(text.contains("every batch") && !text.contains("every 1"), "{text}");
    let terminal = table.terminal(100);
    assert!(
        terminal.contains("Gen<u8, u16>::count ×2") || terminal.contains("Gen<u8, u16>::count"),
        "{terminal}"
    );
    assert!(terminal.contains("every batch"), "{terminal}");
    let left = |path| builder().without(path).build().unwrap().describe_hooks().rows().count();
    assert_eq!(left("it::silent_hooks::kit::Gen"), 0);
    assert_eq!(left("it::silent_hooks::kit::Gen<u8, u16>::count"), 1);
}

/// Hooks before a step only.
struct Early;

impl HookSet for Early {}

struct Ordered;

#[hook]
impl Ordered {
    #[hook(in = Early)]
    fn early(&mut self, _: &Cx<BeforeStep>) {}

    #[hook(after = Early)]
    fn late(&mut self, _: &Cx<AfterStep>) {}

    #[hook(after = Early)]
    fn at_the_same_point(&mut self, _: &Cx<BeforeStep>) {}
}

#[test]
fn the_table_shows_a_constraint_on_a_set_without_a_hook_at_the_moment() {
    let builder = Trainer::builder(model::task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let table = builder.hook(Ordered).build().unwrap().describe_hooks();
    let constraints: Vec<_> = table.rows().flat_map(|row| &row.constraints).collect();
    assert_eq!(constraints, ["after = Early", "after = Early (none here)"]);
}
