//! `describe_hooks` in a terminal.

use trainer::HookTable;
use trainer::hooks::{Checkpoint, Progress};
use trainer::metrics::{Accuracy, Metric, Precision, Recall};
use trainer::modules::Patterns;
use trainer::prelude::*;

use crate::lifecycles::{Skips, Witness};
use crate::model::{self, message};

/// A type whose name is that of a hook in the module `twin`.
struct Watcher;

#[hook]
impl Watcher {
    /// Logs the norm of the gradients: 勾配のノルムを記録します。長い文章は行の幅に合わせて折り返されます。
    #[hook(every = 100, ord = 10)]
    fn after_backward(&mut self, _: &Cx<AfterBackward>) {}

    /// Writes what it saw, after all the others.
    #[hook(in = trainer::stages::Last, writes)]
    fn report(&mut self, _: &Cx<Main<AfterFit>>) {}

    fn around(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.run(cx)
    }

    /// Looks at the activations.
    #[hook(of = "fc1")]
    fn layer(&mut self, _: &mut Cx<AfterModuleForward>) {}
}

mod twin {
    use super::*;

    /// The same name in another module.
    pub(super) struct Watcher;

    fn is_late(cx: &Cx<AfterStep>) -> bool {
        cx.counters().epoch > 3
    }

    #[hook]
    impl Watcher {
        /// Runs late.
        #[hook(after = super::Counter, when = is_late)]
        fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    }
}

/// A hook with many values.
struct Counter;

#[hook]
impl Counter {
    /// Counts.
    fn after_step(&mut self, _: &Cx<AfterStep>) {}
}

fn table() -> HookTable {
    let builder = Trainer::builder(model::named_task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::crates(["plugin"]))
        .without("trainer::hooks::Checkup")
        .clip_grad_norm(1.0)
        .hook(Progress::new())
        .hook(Accuracy::multiclass(3))
        .hook(Precision::multiclass(3))
        .hook(Recall::multiclass(3))
        .hook(Checkpoint::new("checkpoints"))
        .hook(plugin::rounds::Looks::default())
        .hook(Witness::default())
        .hook(Skips)
        .hook(Watcher)
        .hook(twin::Watcher)
        .hook(Counter)
        .hook(Counter)
        .on::<AfterEpoch>("closure", |_| {})
        .on::<AfterEpoch>(HookOptions::named("tied").ord(7), |_| {});
    builder.build().unwrap().describe_hooks()
}

#[test]
fn the_second_table_lists_parameters_by_group_and_those_of_no_optimizer() {
    use trainer::optim::{AdamW, Group};

    let groups = AdamW::new(3e-5).group("*.bias", Group::new().weight_decay(0.0).frozen(true));
    let whole = Trainer::builder(model::task()).optimizer(groups).discover(Discover::None).build().unwrap();
    let part = Trainer::builder(model::task()).optimizer_of("fc1", Sgd::new(0.1)).discover(Discover::None);
    let tables = [whole.describe_hooks(), part.build().unwrap().describe_hooks()];
    for (table, name) in tables.iter().zip(["groups", "part"]) {
        insta::assert_snapshot!(
            format!("parameters_{name}"),
            table.to_string().split_once("\n\n| ").unwrap().1
        );
        for columns in [40, 60, 80] {
            let text = table.terminal(columns);
            let lines = text.split_once("Parameters").unwrap().1;
            assert!(lines.lines().all(|line| line.chars().count() <= columns), "{text}");
            insta::assert_snapshot!(format!("parameters_{name}_{columns}"), lines);
        }
        let json: serde_json::Value = serde_json::from_str(&table.json()).unwrap();
        assert_eq!(json["parameters"].as_array().unwrap().len(), table.parameters().len());
    }
}

#[test]
fn the_table_fits_the_width_of_the_terminal() {
    let table = table();
    for columns in [60, 80, 120, 200] {
        insta::assert_snapshot!(format!("terminal_{columns}"), message(&table.terminal(columns)));
    }
    insta::assert_snapshot!("terminal_full", message(&table.full().terminal(100)));
}

/// Returns whether a text occurs, apart from the line breaks and the columns.
fn contains(text: &str, part: &str) -> bool {
    let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
    letters(text).contains(&letters(part))
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let custom = table();
    let modules = || Patterns::from(["fc1"]).optional("a pattern of a module, which has many words");
    let texts = crate::describe::TEXTS.into_iter().chain([
        "",
        "宽",
        "a name of a hook that is longer than a line of a terminal",
    ]);
    let of_users = texts.filter(|text| !text.is_empty()).map(|text| {
        let labeled = crate::describe::Labeled { text, modules: modules() };
        let builder = Trainer::builder(model::named_task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
        let builder = builder.hook(labeled).hook(Accuracy::multiclass(3).named(text));
        builder.on::<AfterEpoch>(text, |_| {}).build().unwrap().describe_hooks()
    });
    for table in of_users.chain([custom]) {
        for columns in (40..=200).step_by(3) {
            for text in [table.terminal(columns), table.clone().full().terminal(columns)] {
                for line in text.lines() {
                    assert!(unicode_width::UnicodeWidthStr::width(line) <= columns, "{columns}: {line:?}");
                    assert!(!line.contains(char::is_control) && line.trim_end() == line, "{line:?}");
                }
            }
        }
        // Every hook is there in full, and every hook of the program in any case, in the same
        // order.
        let full = table.clone().full().terminal(100);
        for row in table.rows() {
            assert!(contains(&full, &trainer_formats::one_line(&row.hook)), "{}:\n{full}", row.hook);
            let own = !["trainer", ""].contains(&row.krate);
            assert!(!own || contains(&table.terminal(200), &row.docs), "{}", row.docs);
        }
    }
    assert_eq!(table().terminal(0), table().terminal(40));
}

#[test]
fn hook_values_of_one_type_share_one_line() {
    let mut builder = model::builder();
    for _ in 0..1_000 {
        builder = builder.hook(Counter);
    }
    let table = builder.build().unwrap().describe_hooks();
    let text = table.terminal(80);
    assert!(text.contains("Counter ×1000  "), "{text}");
    assert!(text.lines().count() < 15, "{text}");
    assert_eq!(table.full().terminal(80).matches("::Counter #").count(), 1_000);
}

#[test]
fn hooks_on_rank_0_are_counted_on_other_ranks() {
    let texts = trainer::testing::Ranks::new(2).run(|| Ok(table().terminal(100))).unwrap();
    assert!(texts[0].contains("TVEP, rank 0") || texts[0].contains("T, rank 0"), "{}", texts[0]);
    assert!(texts[1].contains("\nThis is rank 1: ") && !texts[1].contains(", rank 0"), "{}", texts[1]);
}

#[test]
fn a_trainer_without_hooks_has_an_empty_table() {
    let text = model::builder().build().unwrap().describe_hooks().terminal(80);
    assert!(text.starts_with("no hooks\n\nFrom: no crate\n\nParameters  Count"), "{text}");
}

/// The program of the next test.
#[test]
#[ignore = "run by another test in a child process"]
fn prints_the_table() {
    table().print();
}

#[test]
fn the_table_is_markdown_in_a_pipe() {
    let child = crate::support::child_process("describe_terminal::prints_the_table").output().unwrap();
    let text = String::from_utf8(child.stdout).unwrap();
    assert!(text.contains(&format!("{}\n", table())), "{text}");
    // This program has many more types with hooks than the trainer has values.
    let absent = text
        .lines()
        .find(|line| line.starts_with("Types with hooks, but without a value in this trainer: `"))
        .unwrap();
    assert!(absent.ends_with(" more") && absent.matches('`').count() == 2 * 5, "{absent}");
}
