//! The order of hooks: `ord`, ties, and constraints.

use std::sync::{Arc, Mutex};

use trainer::prelude::*;
use trainer::stages;

use crate::model::{self, message};

struct First;
struct Second(Arc<Mutex<Vec<&'static str>>>);

#[hook(ord = -1)]
impl First {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {}
    #[hook(ord = 2)]
    fn after_fit(&mut self, _: &mut Cx<AfterFit>) {}
}

#[hook(ord = { const BASE: i32 = 6; BASE - 4 })]
impl Second {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {
        self.0.lock().unwrap().push("second");
    }
    /// Another method at the same moment.
    #[hook(ord = -7)]
    fn early(&mut self, _: &mut Cx<BeforeFit>) {
        self.0.lock().unwrap().push("early");
    }
    fn after_fit(&mut self, _: &mut Cx<AfterFit>) {}
}

#[test]
fn hooks_of_equal_ord_run_in_the_order_added_and_discovered_hooks_run_last() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let record = |name: &'static str| {
        let calls = Arc::clone(&calls);
        move |_: &mut Cx<BeforeFit>| calls.lock().unwrap().push(name)
    };
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::crates(["it"]))
        .without("trainer::hooks::Checkup")
        .without("it::hooks::counted")
        .without("it::instances::Made")
        .on::<BeforeFit>("b", record("b"))
        .on::<BeforeFit>(HookOptions::named("last").ord(3), record("last"))
        .hook(Second(Arc::clone(&calls)))
        .on::<BeforeFit>("a", record("a"))
        .hook(First)
        .build()
        .unwrap();
    let table = trainer.describe_hooks();
    let expected = [
        "it::order::Second::early",
        "it::order::First",
        "b",
        "a",
        "it::order::discovered",
        "it::order::Second",
        "last",
    ];
    assert_eq!(table.at("before_fit"), expected);
    assert_eq!(table.at("after_fit"), ["it::order::Second", "it::order::First"]);

    trainer.fit(&mut model::rows(4), None).unwrap();
    assert_eq!(*calls.lock().unwrap(), ["early", "b", "a", "second", "last"], "dispatched as described");
}

#[hook]
fn discovered(_: &mut Cx<BeforeFit>) {}

/// The target of the constraints below.
#[derive(Default)]
struct Clip;

#[hook(ord = 50)]
impl Clip {
    fn before_opt_step(&mut self, _: &mut Cx<BeforeOptStep>) {}
}

/// A constraint on the impl block, which applies to each moment at which both have a hook.
struct Reads;

#[hook(after = Clip)]
impl Reads {
    fn before_opt_step(&mut self, _: &mut Cx<BeforeOptStep>) {}
    fn after_fit(&mut self, _: &mut Cx<AfterFit>) {}
    #[hook(before = crate::order::Clip, after = optional(First))]
    fn first(&mut self, _: &mut Cx<BeforeOptStep>) {}
}

mod renamed {
    pub(super) use super::Clip as Clipping;
    pub(super) use plugin::nested::early as soon;
}

/// Constraints through a renamed re-export, and with an optional target.
struct Elsewhere;

#[hook(before(renamed::Clipping), after = optional(crate::order::Second))]
impl Elsewhere {
    fn before_opt_step(&mut self, _: &mut Cx<BeforeOptStep>) {}
}

/// A constraint with the path of a function in another crate.
struct OfAnother;

#[hook]
impl OfAnother {
    #[hook(before = renamed::soon)]
    fn before_step(&mut self, _: &mut Cx<BeforeStep>) {}
}

#[test]
fn before_and_after_constraints_override_ord() {
    let trainer = model::builder().hook(Reads).hook(Clip).hook(Elsewhere).build().unwrap();
    let table = trainer.describe_hooks();
    let expected = ["it::order::Reads::first", "it::order::Elsewhere", "it::order::Clip", "it::order::Reads"];
    assert_eq!(table.at("before_opt_step"), expected);
    let order: Vec<_> = table.rows().map(|row| (row.constraints.join(" "), row.tied)).collect();
    assert!(
        order.contains(&("before = renamed::Clipping after = optional(crate::order::Second)".into(), true)),
        "{order:?}"
    );

    let trainer = model::builder()
        .discover(Discover::crates(["plugin"]))
        .without("trainer::hooks::Checkup")
        .hook(OfAnother)
        .build()
        .unwrap();
    assert_eq!(trainer.describe_hooks().at("before_step"), ["it::order::OfAnother", "plugin::nested::early"]);
}

/// Cyclic constraints: of two hooks, of three, and of one with itself.
macro_rules! cyclic_hooks {
    ($($name:ident $at:ident $marker:ident: $($key:ident $target:path),*;)*) => {$(
        struct $name;
        #[hook]
        impl $name {
            #[hook($($key = $target), *)]
            fn at(&mut self, _: &mut Cx<$marker>) {}
        }
    )*};
}

cyclic_hooks! {
    A before_fit BeforeFit: before B;
    B before_fit BeforeFit: before A;
    C after_fit AfterFit: after D;
    D after_fit AfterFit: after E;
    E after_fit AfterFit: after C;
    F after_fit AfterFit: after E;
    G setup Setup: after crate::order::G;
}

#[test]
fn all_ordering_cycles_are_reported_with_locations_and_constraints() {
    let error = model::builder().hook(A).hook(B).hook(C).hook(D).hook(E).hook(F).hook(G).build().unwrap_err();
    insta::assert_snapshot!(message(&error), @r#"
    the trainer cannot be built, for 3 reasons:
    - the order constraints of these hooks form a cycle; remove at least one:
        `it::order::G::at` (tests/it/order.rs:_) before itself: `it::order::G::at` has `after = crate::order::G`
    - the order constraints of these hooks form a cycle; remove at least one:
        `it::order::A::at` (tests/it/order.rs:_) before `it::order::B::at` (tests/it/order.rs:_): `it::order::A::at` has `before = B`
        `it::order::B::at` (tests/it/order.rs:_) before `it::order::A::at` (tests/it/order.rs:_): `it::order::B::at` has `before = A`
    - the order constraints of these hooks form a cycle; remove at least one:
        `it::order::C::at` (tests/it/order.rs:_) before `it::order::E::at` (tests/it/order.rs:_): `it::order::E::at` has `after = C`
        `it::order::E::at` (tests/it/order.rs:_) before `it::order::D::at` (tests/it/order.rs:_): `it::order::D::at` has `after = E`
        `it::order::D::at` (tests/it/order.rs:_) before `it::order::C::at` (tests/it/order.rs:_): `it::order::C::at` has `after = D`
    "#);
}

/// Hooks in stages, whose `ord` says the opposite.
struct Staged;

#[hook]
impl Staged {
    #[hook(in = stages::Last, ord = -9)]
    fn last(&mut self, _: &Cx<AfterStep>) {}
    #[hook(in = trainer::stages::Loggers, ord = -2)]
    fn second_logger(&mut self, _: &Cx<AfterStep>) {}
    #[hook(in = stages::Loggers, ord = -3)]
    fn first_logger(&mut self, _: &Cx<AfterStep>) {}
    #[hook(ord = i32::MAX)]
    fn without_a_stage(&mut self, _: &Cx<AfterStep>) {}
    #[hook(in = stages::Metrics, ord = 9)]
    fn metrics(&mut self, _: &Cx<AfterStep>) {}
    #[hook(in(stages::First), ord = 10)]
    fn first(&mut self, _: &Cx<AfterStep>) {}
}

#[test]
fn hooks_run_in_the_order_of_their_stages_and_within_a_stage_by_ord() {
    let trainer = model::builder()
        .on::<AfterStep>(HookOptions::named("shown").in_set(stages::Display), |_| ())
        .hook(Staged)
        .build()
        .unwrap();
    let table = trainer.describe_hooks();
    let names = ["first", "metrics", "without_a_stage", "shown", "first_logger", "second_logger", "last"];
    let found: Vec<_> =
        table.at("after_step").iter().map(|name| name.replace("it::order::Staged::", "")).collect();
    assert_eq!(found, names);
    let places: Vec<_> = table.rows().map(|row| (row.stage, row.ord, row.sets.len(), row.tied)).collect();
    assert_eq!(places[0], (Some("First"), 10, 0, false));
    assert_eq!(places[2], (None, i32::MAX, 0, false));
    assert_eq!(places[4], (Some("Loggers"), -3, 0, false));
    let text = table.to_string();
    for order in ["First 10 ", "Metrics 9 ", "2147483647 ", "Display ", "Loggers -3 ", "Last -9 "] {
        assert!(text.contains(&format!("| {order}")), "{order}: {text}");
    }
}

/// A set of the tests, and one without a hook.
struct Reports;
struct Nothing;

impl HookSet for Reports {}
impl HookSet for Nothing {}

/// Hooks in sets of this crate and of another one, in both, and around an operation.
struct InSets;

#[hook(in = plugin::Endings)]
impl InSets {
    fn inherits(&mut self, _: &Cx<AfterStep>) {}
    #[hook(in(Reports, plugin::Endings, stages::Loggers))]
    fn in_three(&mut self, _: &Cx<AfterStep>) {}
    #[hook(in = Reports)]
    fn overrides(&mut self, _: &Cx<AfterStep>) {}
    fn around(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.run(cx)
    }
}

/// Hooks that run before or after all hooks of a set.
struct Beside;

#[hook]
impl Beside {
    #[hook(after(Reports, Nothing), before = Nothing)]
    fn after_reports(&mut self, _: &Cx<AfterStep>) {}
    #[hook(before = plugin::Endings, ord = 7)]
    fn before_endings(&mut self, _: &Cx<AfterStep>) {}
    #[hook(after = plugin::Endings, ord = -7)]
    fn inside(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.run(cx)
    }
}

#[test]
fn a_constraint_that_names_a_set_holds_for_all_its_hooks() {
    let trainer = model::builder().hook(Beside).hook(InSets).build().unwrap();
    let table = trainer.describe_hooks();
    let found: Vec<_> = table.at("after_step").iter().map(|name| name.replace("it::order::", "")).collect();
    let expected = [
        "Beside::before_endings",
        "InSets::inherits",
        "InSets::overrides",
        "InSets::in_three",
        "Beside::after_reports",
    ];
    assert_eq!(found, expected);
    assert_eq!(table.at("opt_step"), ["it::order::InSets::around", "it::order::Beside::inside"]);
    let rows: Vec<_> = table.rows().filter(|row| row.sets.len() > 1).collect();
    assert_eq!(rows[0].sets, ["Reports", "plugin::Endings"]);
    let text = table.to_string();
    assert!(text.contains("| Loggers, in = Reports, in = plugin::Endings "), "{text}");
    assert!(
        text.contains("| 0, before = Nothing (none here), after = Reports, after = Nothing (none here) "),
        "{text}"
    );
    let json = table.json().replace([' ', '\n'], "");
    assert!(
        json.contains(r#""stage":"Loggers""#) && json.contains(r#""sets":["Reports","plugin::Endings"]"#),
        "{json}"
    );
}

/// Hooks in two stages, and between hooks of a set that must run in both orders.
struct Torn;

#[hook]
impl Torn {
    #[hook(in(stages::Display, Reports, stages::Loggers))]
    fn torn(&mut self, _: &Cx<AfterFit>) {}
    #[hook(after = Reports, before = Reports)]
    fn between(&mut self, _: &Cx<AfterFit>) {}
}

#[test]
fn hooks_in_two_stages_and_cycles_through_sets_are_reported() {
    let error = model::builder().hook(Torn).build().unwrap_err();
    insta::assert_snapshot!(message(&error), @r"
    the trainer cannot be built, for 2 reasons:
    - `it::order::Torn::torn` (tests/it/order.rs:_) is in two stages, `Display` and `Loggers`: keep one, and order the hook relative to others with `before` and `after`
    - the order constraints of these hooks form a cycle; remove at least one:
        `it::order::Torn::torn` (tests/it/order.rs:_) before `it::order::Torn::between` (tests/it/order.rs:_): `it::order::Torn::between` has `after = Reports`
        `it::order::Torn::between` (tests/it/order.rs:_) before `it::order::Torn::torn` (tests/it/order.rs:_): `it::order::Torn::between` has `before = Reports`
    ");
    let error = model::builder()
        .on::<AfterFit>(HookOptions::named("both").in_set(stages::Display).in_set(stages::Last), |_| ())
        .build()
        .unwrap_err();
    insta::assert_snapshot!(message(&error), @"the trainer cannot be built: `both` (tests/it/order.rs:_) is in two stages, `Display` and `Last`: keep one, and order the hook relative to others with `before` and `after`");
}

/// A type whose hooks are in three blocks.
#[derive(Default)]
struct Blocks {
    calls: Vec<&'static str>,
    every: u64,
}

#[hook(more, ord = 3)]
impl Blocks {
    fn second(&mut self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        self.calls.push("around");
        next.run(cx)
    }
    fn at_the_end(&mut self, _: &Cx<AfterStep>) {
        self.calls.push("end");
    }
}

#[hook]
impl Blocks {
    fn first(&mut self, _: &Cx<BeforeStep>) {
        self.calls.push("first");
    }
}

mod third {
    use trainer::prelude::*;

    #[hook(more)]
    impl super::Blocks {
        #[hook(every = self.every)]
        fn third(&mut self, _: &Cx<AfterStep>) {
            self.calls.push("third");
        }
    }
}

#[test]
fn a_type_has_the_hooks_of_all_its_blocks() {
    let mut trainer = model::builder().hook(Blocks { every: 2, ..Blocks::default() }).build().unwrap();
    let table = trainer.describe_hooks();
    assert_eq!(table.at("after_step"), ["it::order::Blocks::third", "it::order::Blocks::at_the_end"]);
    trainer.fit(&mut model::rows(8), None).unwrap();
    let calls = &trainer.hook::<Blocks>().unwrap().calls;
    assert_eq!(*calls, ["first", "around", "end", "first", "around", "third", "end"]);
}
