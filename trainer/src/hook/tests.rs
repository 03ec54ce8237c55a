//! The language of hooks, in a [`Toy`] loop: order, cycles, sets, hooks around operations, phases,
//! checks and descriptions. No libtorch is called.

pub(super) mod toy;

use std::any::{Any, TypeId};

use self::toy::{Toy, complains, fails, handles, lies, panics, point, refuses, replaces, runs, skips};
use super::call::Loop;
use super::check::check;
use super::constraint::{OrderConstraint, OrderTarget};
use super::definition::{Hook, HookDef, HookResult, Origin, Shim};
use super::describe::HookTable;
use super::frame::Rest;
use super::read::TaskTypes;
use super::set::{HookSet, SetRef};
use super::stages;
use super::table::Table;
use crate::lifecycle as on;
use crate::modules::ModulePattern;
use crate::phase::Phase;

struct Type<const N: usize>;
struct X;
struct Y;
impl HookSet for X {}
impl HookSet for Y {}

fn target(name: &str) -> OrderTarget {
    let set = |id| OrderTarget { id, is_set: true };
    let types: [&dyn Any; 8] =
        [&Type::<0>, &Type::<1>, &Type::<2>, &Type::<3>, &Type::<4>, &Type::<5>, &Type::<6>, &Type::<7>];
    match name {
        "X" => set(TypeId::of::<X>()),
        "Y" => set(TypeId::of::<Y>()),
        "Loggers" => set(TypeId::of::<stages::Loggers>()),
        _ => OrderTarget { id: (*types[usize::from(name.as_bytes()[0] - b'a')]).type_id(), is_set: false },
    }
}

/// Parses hooks: `a ord=1; b at step does=skips before=a`. The type of a hook is its first letter.
fn parse(hooks: &str) -> Vec<Hook<Toy>> {
    hooks
        .split(';')
        .map(str::trim)
        .filter(|hook| !hook.is_empty())
        .map(|hook| parse_one(hook.to_owned().leak()))
        .collect()
}

fn parse_one(text: &'static str) -> Hook<Toy> {
    let words: Vec<&str> = text.split(' ').collect();
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let points: fn(&mut Toy, u32) -> HookResult = match value("does") {
        Some("fails") => fails,
        Some("complains") => complains,
        Some("panics") => panics,
        _ => point,
    };
    let around: fn(&mut Toy, u32, Rest<'_, Toy>) -> HookResult = match value("does") {
        Some("skips") => skips,
        Some("replaces") => replaces,
        Some("handles") => handles,
        Some("refuses") => refuses,
        Some("lies") => lies,
        _ => runs,
    };
    let origin = Origin::new("toy", words[0], None, "toy.rs", [(0, 0); 2]).written(7, 1, "");
    let id = target(words[0]).id;
    let ord = value("ord").map_or(0, |ord| ord.parse().unwrap());
    macro_rules! at {
        ($($word:literal $at:ident $shim:expr),*) => {
            match words.iter().position(|word| *word == "at").map_or("after_step", |at| words[at + 1]) {
                $($word => HookDef::new::<on::$at>(origin, id, ord, $shim),)*
                other => panic!("{other}"),
            }
        };
    }
    let mut hook = at!(
        "before_step" BeforeStep Shim::Point(points), "after_step" AfterStep Shim::Point(points),
        "after_pred" AfterPred Shim::Point(points), "after_epoch" AfterEpoch Shim::Point(points),
        "after_valid" AfterValid Shim::Point(points), "teardown" Teardown Shim::Point(points),
        "after_module_forward" AfterModuleForward Shim::Point(points), "opt_step" OptStep Shim::Around(around),
        "step" Step Shim::Around(around), "pred" Pred Shim::Around(around), "valid" Valid Shim::Around(around)
    );
    let is = |flag: &str| words.contains(&flag);
    (hook.main_only, hook.observes, hook.writes) = (is("main"), is("observes"), is("writes"));
    hook.every = value("every").map(|every| every.parse().unwrap());
    hook.when = value("when");
    hook.of = value("of").map_or(&[], |of| vec![ModulePattern::new(of)].leak());
    for phase in value("only").into_iter().flat_map(|only| only.split(',')) {
        hook.only = hook.only.with(Phase::ALL.into_iter().find(|known| known.name() == phase).unwrap());
    }
    hook.sets = value("in")
        .into_iter()
        .flat_map(|sets| sets.split(','))
        .map(|set| match set {
            "First" => SetRef::of::<stages::First>(set),
            "Averaging" => SetRef::of::<stages::Averaging>(set),
            "Metrics" => SetRef::of::<stages::Metrics>(set),
            "Display" => SetRef::of::<stages::Display>(set),
            "Loggers" => SetRef::of::<stages::Loggers>(set),
            "Last" => SetRef::of::<stages::Last>(set),
            "X" => SetRef::of::<X>(set),
            _ => SetRef::of::<Y>(set),
        })
        .collect();
    let sides = [("before", OrderConstraint::before as fn(_, _) -> _), ("after", OrderConstraint::after)];
    let of_side = |(key, side): (&str, fn(OrderTarget, &'static str) -> OrderConstraint)| {
        let targets: Vec<&'static str> = text
            .split(' ')
            .filter_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            .flat_map(|all| all.split(','))
            .collect();
        targets
            .into_iter()
            .map(move |name| match name.strip_prefix('?') {
                Some(name) => side(target(name), name).optional(),
                None => side(target(name), name),
            })
            .collect::<Vec<_>>()
    };
    hook.constraints = sides.into_iter().flat_map(of_side).collect::<Vec<_>>().leak();
    let slot = value("slot").map(|slot| slot.parse().unwrap());
    Hook::new(hook, slot)
}

/// Returns the names of the hooks at a moment, in order.
fn order(hooks: &str, moment: &str) -> String {
    let table = Table::freeze(parse(hooks), 0).unwrap_or_else(|cycles| panic!("{hooks}: {cycles:?}"));
    HookTable::of(&table, &Default::default(), std::iter::empty()).at(moment).join(" ")
}

#[test]
fn hooks_are_ordered_by_constraints_then_stages_then_ord_then_registration() {
    for (hooks, expected) in [
        ("a; b; c", "a b c"),
        ("c; b; a", "c b a"),
        ("a ord=1; b; c ord=-1", "c b a"),
        ("a ord=2147483647; b ord=-2147483648", "b a"),
        ("a ord=1; b ord=1; c", "c a b"),
        ("a after=b; b", "b a"),
        ("a; b before=a", "b a"),
        ("a after=b ord=-9; b ord=9", "b a"),
        ("a; b before=a ord=9", "b a"),
        ("a after=b; b after=c; c", "c b a"),
        ("a; b; c before=a,b", "c a b"),
        ("a after=b,c; b; c", "b c a"),
        // A constraint with an absent target that may be absent.
        ("a after=?h; b", "a b"),
        ("a after=?b; b", "b a"),
        // `before` moves the hook that has it, not its target.
        ("a ord=-5; b; c ord=3 before=a", "c a b"),
        ("a; b after=c; c ord=5", "a c b"),
        // Several hooks of one type: a constraint holds for all.
        ("a1; b after=a; a2 ord=7", "a1 a2 b"),
        ("b before=a; a1; a2", "b a1 a2"),
        ("a after=b; b; a3 ord=-1", "a3 b a"),
        // Equal constraints twice.
        ("a after=b after=b; b", "b a"),
    ] {
        assert_eq!(order(hooks, "after_step"), expected, "{hooks}");
    }
}

#[test]
fn stages_are_before_or_after_hooks_without_one_and_sets_may_be_empty() {
    for (hooks, expected) in [
        ("a in=Loggers; b; c in=Metrics", "c b a"),
        ("a in=Last ord=-9; b in=First ord=9", "b a"),
        ("a in=Loggers ord=1; b in=Loggers; c in=Display ord=8", "c b a"),
        ("a ord=2147483647; b in=Display", "a b"),
        ("a before=Loggers ord=9; b in=Loggers", "a b"),
        ("a after=Loggers; b in=Loggers; c", "c b a"),
        ("a after=X; b in=X; c in=X ord=5", "b c a"),
        ("a before=X ord=5; b in=X; c in=X,Y", "a b c"),
        ("a in=X,Loggers; b; c after=X in=Last", "b a c"),
        ("a before=X; b", "a b"),
        ("a after=X,Y; b in=Y ord=3", "b a"),
        ("a in=Averaging; b before=Y ord=4; c in=Averaging,Y", "a b c"),
        ("a; b in=Metrics before=?a", "b a"),
    ] {
        assert_eq!(order(hooks, "after_step"), expected, "{hooks}");
    }
}

#[test]
fn each_cycle_is_reported_once_with_its_constraints() {
    const FORM: &str = "the order constraints of these hooks form a cycle; remove at least one:";
    for (hooks, cycles) in [
        ("a after=a", &["`a` (toy.rs:7) before itself: `a` has `after = a`"][..]),
        ("a before=b; b before=a", &["`a` (toy.rs:7) before `b` (toy.rs:7): `a` has `before = b`"]),
        ("a before=b; b; c", &[]),
        ("a after=b; b after=c; c after=a; d after=c", &["`c` has `after = a`"]),
        ("a before=b; b before=a; c before=d; d before=c", &["`a` has `before = b`", "`c` has `before = d`"]),
        ("a in=X; b after=X before=X", &["`b` has `after = X`"]),
        ("a in=X before=X", &["`a` (toy.rs:7) before itself"]),
        // A cycle of hooks at another moment is none.
        ("a before=b; b at before_step before=a", &[]),
    ] {
        let found = Toy::new(parse(hooks)).err().unwrap_or_default();
        assert_eq!(found.len(), cycles.len(), "{hooks}: {found:?}");
        for (message, part) in found.iter().zip(cycles) {
            assert!(message.starts_with(FORM) && message.contains(part), "{hooks}: {message}");
        }
    }
}

/// Runs an epoch, and returns what ran, the error if there was one, and the hook that is
/// responsible for how an operation ended.
fn run(hooks: &str, epochs: u64) -> String {
    let mut toy = Toy::new(parse(hooks)).unwrap_or_else(|cycles| panic!("{hooks}: {cycles:?}"));
    let (result, later, panic) = toy.fit(epochs);
    let mut words = std::mem::take(&mut toy.trace);
    words.extend(toy.responsible.map(|hook| format!("({})", toy.name(hook))));
    words.extend(result.err().into_iter().chain(later).map(|error| format!("! {error}")));
    words.extend(panic.map(|_| "panic".to_owned()));
    words.join(" ")
}

#[test]
fn hooks_run_before_around_and_after_an_operation_in_the_phases_in_which_they_are() {
    for (hooks, expected) in [
        ("", "step step step"),
        ("a; b at before_step", "b step a b step a b step a"),
        ("a at step only=train", "a step out a step out step"),
        ("a at step only=train; b at step only=train ord=-1", "b a step out out b a step out out step"),
        ("a only=valid", "step step step a"),
        ("a only=train,valid", "step a step a step a"),
        ("a at pred only=valid; b at after_pred only=valid", "step step step a out b"),
        ("a at after_epoch; b at after_valid", "step step step b a"),
        ("a every=2", "step step a step"),
        ("a at after_epoch every=2", "step step step"),
        ("a at step every=2", "step a step out step"),
        ("a main only=valid", "step step step a"),
        ("a at teardown", "step step step a"),
    ] {
        assert_eq!(run(hooks, 1), expected, "{hooks}");
    }
    assert_eq!(run("a at after_epoch every=2", 4), "step step step step step step a ".repeat(2).trim_end());
}

#[test]
fn an_around_hook_runs_skips_replaces_or_fails_and_the_point_after_fires_if_the_operation_took_place() {
    for (hooks, expected) in [
        ("a at step does=skips only=train; b", "a a step b (a)"),
        ("a at step does=replaces only=train; b", "a b a b step b (a)"),
        // The inner hooks do not run, and the outer one runs its own code after.
        ("a at step does=skips only=train ord=1; b at step only=train", "b a out b a out step (a)"),
        ("a at step does=skips only=train ord=-1; b at step only=train", "a a step (a)"),
        ("a at step every=2 does=skips only=train; b", "step b a step b (a)"),
        ("a at step does=handles only=train; b", "a step b a step b step b"),
        // The error of an inner hook is handled: the operation was skipped or failed.
        (
            "a at step does=handles only=train; b at step does=refuses only=train ord=1; c",
            "a b a b step c (a)",
        ),
        (
            "a at step does=handles only=train; b at after_pred does=fails only=train; c",
            "a step b a step b step c (a)",
        ),
        ("a at step does=refuses", "a ! a failed at step: on purpose"),
        ("a at step; b at after_pred does=fails", "a step b out ! b failed at after_pred: on purpose"),
        ("a does=fails; b", "step a ! a failed at after_step: on purpose"),
        ("a does=complains", "step ! a failed at after_step: left behind"),
        (
            "a at step does=lies",
            "a ! a failed at step: the hook returned a `Done` of another operation: return the one that its own `next` returned",
        ),
        (
            "a at step does=skips observes",
            "a ! a failed at step: the hook has the key `observes`, but did not run the operation: return `next.run(cx)`, or remove the key",
        ),
        (
            "a at step does=handles observes; b at after_pred does=fails",
            "a step b ! a failed at step: the hook has the key `observes`, but handled an error of the operation: return `next.run(cx)`, or remove the key",
        ),
        // All hooks at `teardown` run, whatever happens.
        (
            "a does=fails; b at teardown does=fails; c at teardown",
            "step a b c ! a failed at after_step: on purpose ! b failed at teardown: on purpose",
        ),
        (
            "a at teardown does=panics; b at teardown",
            "step step step a b ! a failed at teardown: panicked: panicked on purpose panic",
        ),
    ] {
        assert_eq!(run(hooks, 1), expected, "{hooks}");
    }
}

#[test]
fn mistakes_that_only_the_complete_set_of_hooks_reveals_are_reported_at_once() {
    let mistakes = |hooks: &str| {
        let mut mistakes = Vec::new();
        check(&parse(hooks), &TaskTypes::of::<u8, u16, u32>(), &mut mistakes);
        mistakes
    };
    let many: String = (0..501).map(|_| "a at step; ").collect();
    for (hooks, parts) in [
        ("a; b after=a", &[][..]),
        (
            "a after=b",
            &["has `after = b`, but this trainer has no such hook: add it, or write `after = optional(b)`"],
        ),
        ("a after=?b", &[]),
        ("a after=X", &[]),
        (
            "a after=b; b at before_step",
            &["`a` (toy.rs:7) at `after_step` has `after = b`, but `b` is at `before_step`"],
        ),
        ("a in=Display,Loggers", &["`a` (toy.rs:7) is in two stages, `Display` and `Loggers`"]),
        ("a every=0", &["`every` of `a` (toy.rs:7) is 0: expected at least 1"]),
        (
            "a at after_valid only=train",
            &[
                "`a` (toy.rs:7) can never fire: no entry point of the trainer reaches `after_valid` in `train`",
            ],
        ),
        (
            "a at valid slot=1; a1 slot=1",
            &[
                "`a` (toy.rs:7) wraps `valid` and borrows its value throughout, so `a1` (toy.rs:7) cannot run inside it",
            ],
        ),
        ("a at valid slot=1; a1 slot=1 only=train", &[]),
        ("a at valid slot=1; a1 slot=2", &[]),
        ("a at valid slot=1; a1 at after_valid slot=1", &[]),
        (
            "a at pred slot=0",
            &["wraps `pred` and borrows the task throughout, but the task computes inside it"],
        ),
        ("a at opt_step slot=0", &[]),
        (
            "a at after_module_forward slot=0",
            &["is a hook of the task at `after_module_forward`, which runs while the task is computing"],
        ),
        (
            &many,
            &["there are 501 `around` hooks, 501 of them around `step`, but the stack only has room for 500"],
        ),
        ("a after=b; b at before_step every=0", &["is 0", "is at `before_step`"]),
    ] {
        let found = mistakes(hooks);
        assert_eq!(found.len(), parts.len(), "{hooks}: {found:?}");
        for part in parts {
            assert!(found.iter().any(|message| message.contains(part)), "{hooks}: {found:?}");
        }
    }
}

#[test]
fn a_description_has_what_determines_when_a_hook_runs() {
    for (hooks, order, when) in [
        ("a", "0", "train sanity valid test"),
        ("a; b", "0 =", "train sanity valid test"),
        ("a; b after=a", "0", "train sanity valid test"),
        ("a ord=-3 only=train every=2", "-3", "train, every 2 batches"),
        ("a at after_epoch every=1", "0", "train, every epoch"),
        (
            "a in=Loggers when=is_first main writes only=valid",
            "Loggers",
            "valid, when is_first, rank 0, writes",
        ),
        ("a in=Loggers,X ord=4 only=valid", "Loggers 4, in = X", "valid"),
        ("a after=X,?b only=valid", "0, after = X (none here), after = optional(b)", "valid"),
        ("a at after_module_forward of=fc* only=valid", "0", "valid, of fc*"),
    ] {
        let table = Table::freeze(parse(hooks), 0).unwrap_or_else(|cycles| panic!("{cycles:?}"));
        let table = HookTable::of(&table, &Default::default(), std::iter::empty()).only_used();
        let text = table.to_string();
        for cell in [format!("| {order} "), format!(" {when} ")] {
            assert!(text.contains(&cell), "{hooks}: {cell} in\n{text}");
        }
        assert!(text.contains("toy.rs:7") && table.json().contains("\"hook\": \"a\""), "{hooks}");
    }
}

#[test]
fn a_table_of_another_rank_lacks_the_hooks_of_rank_0() {
    let table = |rank| Table::freeze(parse("a main; b"), rank).unwrap_or_else(|cycles| panic!("{cycles:?}"));
    let names = |rank| {
        let table = HookTable::of(&table(rank), &Default::default(), std::iter::empty());
        table.at("after_step").join(" ")
    };
    assert_eq!([names(0), names(1)], ["a b", "b"]);
}

#[test]
fn a_loop_returns_to_its_place_after_an_operation_with_hooks() {
    let mut toy = Toy::new(parse("a at step; b at step does=skips only=valid"))
        .unwrap_or_else(|cycles| panic!("{cycles:?}"));
    toy.fit(1).0.unwrap();
    assert_eq!((toy.operation_mut().name, toy.hook()), ("fit", None));
}
