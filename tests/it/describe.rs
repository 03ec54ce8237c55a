//! `describe_hooks`: the table of hooks in its formats.

use trainer::prelude::*;

use crate::model;

fn trainer() -> Trainer<impl Task<Batch = (Tensor, Tensor)>> {
    Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::crates(["plugin"]))
        .on::<AfterEpoch>("closure", |_| {})
        .on::<AfterEpoch>(HookOptions::named("tied").ord(7), |_| {})
        .without("trainer::hooks::Checkup")
        .build()
        .unwrap()
}

#[test]
fn the_table_lists_each_hook_with_its_moment_and_source() {
    insta::assert_snapshot!(trainer().describe_hooks().only_used());
}

#[test]
fn json_agrees_with_the_table() {
    let table = trainer().describe_hooks().only_used();
    insta::assert_snapshot!("json", table.json());

    let json: serde_json::Value = serde_json::from_str(&trainer().describe_hooks().json()).unwrap();
    let hooks = |moment: &serde_json::Value| moment["hooks"].as_array().unwrap().len();
    let all: usize = json["moments"].as_array().unwrap().iter().map(hooks).sum();
    assert_eq!(all, table.rows().count());
}

/// Texts that could break a format.
pub(crate) const TEXTS: [&str; 16] = [
    "two\nlines",
    "two\r\nlines",
    "two\rlines",
    "two\u{2028}lines",
    "a\ttab\u{1b}[31m",
    "a | bar",
    "a \\| bar \\",
    "a `tick",
    "`code | code`",
    "``` fence",
    "<br/><b>bold",
    "\" quote \"]",
    "#quot;#lt;",
    "%%{init}%% --> end",
    "n1[x] & y; z",
    "| --- |",
];

/// A hook whose label, and whose modules, are a text of the user.
pub(crate) struct Labeled {
    pub(crate) text: &'static str,
    pub(crate) modules: trainer::modules::Patterns,
}

#[hook(state)]
impl Labeled {
    /// Documented with a | bar, a ` tick, <b>HTML and a "quote\".
    fn after_epoch(&mut self, _: &mut Cx<AfterEpoch>) {}

    #[hook(of = self.modules)]
    fn after_module_forward(&mut self, _: &mut Cx<AfterModuleForward>) {}
}

impl trainer::checkpoint::State for Labeled {
    fn save(&self) -> Result<trainer::checkpoint::Saved> {
        Ok(trainer::checkpoint::Saved::new())
    }

    fn load(&mut self, _: &trainer::checkpoint::Saved) -> Result<()> {
        Ok(())
    }

    fn label(&self) -> Option<String> {
        Some(self.text.to_owned())
    }
}

/// Returns the table of a trainer whose hooks, metric and modules have this text.
fn table_with(text: &'static str) -> trainer::HookTable {
    use trainer::metrics::{Accuracy, Metric};

    let modules = trainer::modules::Patterns::from(["fc1"]).optional(text);
    let trainer = Trainer::builder(model::named_task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Labeled { text, modules })
        .on::<AfterEpoch>(text, |_| {})
        .hook(Accuracy::multiclass(3).named(text))
        .build();
    trainer.unwrap().describe_hooks().only_used()
}

/// Returns the cells of a line of a Markdown table, as GitHub divides it.
fn cells(line: &str) -> usize {
    let mut bars = 0;
    let mut escaped = false;
    for letter in line.chars() {
        bars += usize::from(letter == '|' && !escaped);
        escaped = letter == '\\' && !escaped;
    }
    bars - 1
}

#[test]
fn user_supplied_text_does_not_break_any_format() {
    let plain = table_with("plain");
    let lines = |text: &str| text.lines().count();
    for text in TEXTS {
        let table = table_with(text);
        let of_text = table.to_string();
        assert_eq!(lines(&of_text), lines(&plain.to_string()), "{text:?}:\n{of_text}");
        let is_control = |letter: char| letter.is_control() && letter != '\n';
        for of_text in [of_text, table.terminal(80)] {
            assert!(!of_text.contains(is_control), "{text:?}:\n{of_text}");
        }
        for line in table.to_string().lines().take_while(|line| !line.is_empty()) {
            assert_eq!(cells(line), 7, "{text:?}: {line}");
        }
        let json: serde_json::Value = serde_json::from_str(&table.json()).unwrap();
        let shown = json.to_string().contains(serde_json::to_string(text).unwrap().trim_matches('"'));
        assert!(shown, "{text:?}");
    }
}

/// The program that the next test runs in a separate process.
#[test]
fn prints_the_requested_table() {
    let built = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::crates(["plugin"]))
        .without("trainer::hooks::Checkup")
        .build();
    match built.unwrap().describe_requested() {
        Ok(printed) => assert_eq!(printed, std::env::var_os("TRAINER_DESCRIBE").is_some()),
        Err(error) => print!("{error}"),
    }
}

#[test]
fn describe_requested_prints_the_format_that_the_environment_names() {
    let run = |form: &str| {
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "describe::prints_the_requested_table", "--nocapture", "--test-threads=1"]);
        let output = program.env("TRAINER_DESCRIBE", form).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    for (form, start) in
        [("terminal", "fit\n"), ("full", "fit\n"), ("markdown", "| Lifecycle Point"), ("json", "{\n")]
    {
        let text = run(form);
        let printed = text
            .split_once("describe::prints_the_requested_table ... ")
            .map_or(&*text, |(_, printed)| printed);
        let printed = printed.split_once("running 1 test\n").map_or(printed, |(_, printed)| printed);
        assert!(printed.starts_with(start), "{form}: {text}");
    }
    for (value, similar) in [("jsn", "; did you mean `json`?"), ("ful", "; did you mean `full`?"), ("", "")] {
        let text = run(value);
        let error = format!(
            "`TRAINER_DESCRIBE={value}` is not a known format: expected one of `terminal`, `full`, `markdown`, `json`{similar}"
        );
        assert!(text.contains(&error), "{text}");
    }
}

#[test]
fn the_table_has_a_row_for_every_point_in_lifecycle_order() {
    let text = trainer().describe_hooks().to_string();
    let points: Vec<_> = (text.lines().skip(2).take_while(|line| !line.is_empty()))
        .filter_map(|line| line.split('|').nth(1).map(str::trim).filter(|point| !point.is_empty()))
        // Custom points of other crates are listed between them.
        .filter(|point| !point.contains("::"))
        .collect();
    let declared: Vec<_> = model::points().map(|point| point.name).collect();
    assert_eq!(points, declared);
    let empty = text.lines().find(|line| line.starts_with("| before_fit ")).unwrap();
    assert!(empty.contains("| (none) "), "{empty}");
}

#[test]
fn migration_tables_map_to_moments_that_fire_in_the_stated_phase() {
    use trainer::migration::{POINTS, Row};

    let declared: Vec<_> = model::points().collect();
    let phases = |moment: &str| {
        // An operation has a point before it.
        let point =
            declared.iter().find(|info| info.name == moment || info.name == format!("before_{moment}"));
        Some(point?.phases.to_string())
    };
    for Row { page, theirs, moment, filter, .. } in POINTS.iter().filter(|row| !row.moment.is_empty()) {
        let reached = phases(moment).unwrap_or_else(|| panic!("{page}: `{moment}` is not a moment"));
        let filtered = filter.strip_prefix("only = ").unwrap_or(filter);
        assert!(
            filtered.is_empty() || reached.split(' ').any(|phase| phase == filtered),
            "{page}: `{moment}, {filter}`"
        );
        // Otherwise the compiler's advice would claim that our own name is another trainer's.
        let names_it = |row: &Row| {
            let operation = row.moment.strip_prefix("before_").or_else(|| row.moment.strip_prefix("after_"));
            row.moment == *theirs || operation == Some(*theirs)
        };
        assert!(
            phases(theirs).is_none() || POINTS.iter().any(names_it),
            "{page}: `{theirs}` is also one of our names, but no row of the page maps to it"
        );
    }
}

#[test]
fn describing_many_hooks_takes_linear_time() {
    /// A hook that does nothing.
    struct Counter;

    #[hook]
    impl Counter {
        fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    }
    const COUNT: usize = 20_000;
    let mut builder = model::builder();
    for _ in 0..COUNT {
        builder = builder.hook(Counter);
    }
    // In quadratic time, this would take minutes.
    let table = builder.build().unwrap().describe_hooks();
    let names = table.at("after_step");
    assert_eq!(names.len(), COUNT);
    assert!(names[COUNT - 1].ends_with(&format!("Counter #{COUNT}")), "{}", names[COUNT - 1]);
}

#[test]
fn every_key_of_the_hook_attribute_is_documented() {
    let keys = include_str!("../../trainer-macros/src/hook/words.rs");
    let keys = keys.split_once("const KEYS").unwrap().1.split_once("];").unwrap().0;
    let keys: Vec<_> = keys.split('"').skip(1).step_by(2).collect();
    assert!(keys.len() > 8 && keys.contains(&"every"), "the keys were found");
    let page = include_str!("../../trainer/src/pages/language.rs");
    for key in keys {
        assert!(
            page.contains(&format!(" {key}: ()"))
                || page.contains(&format!(" r#{key}: ()"))
                || page.contains(&format!("`{key} = ")),
            "{key}"
        );
    }
}

/// Returns the paths as texts. Compiles only if each can be imported.
macro_rules! public {
    ($($($word:ident)::+,)*) => {{
        $(
            #[allow(unused_imports)]
            const _: () = {
                use $($word)::+ as _;
            };
        )*
        [$(concat_path(&[$(stringify!($word)),+])),*]
    }};
}

fn concat_path(words: &[&str]) -> String {
    words.join("::")
}

#[test]
fn built_in_hooks_are_shown_under_paths_that_programs_can_import() {
    let mut public = public![
        trainer::hooks::ActivationCheckpointing,
        trainer::hooks::ActivationStats,
        trainer::hooks::Amp,
        trainer::hooks::BatchNormUpdate,
        trainer::hooks::Checkpoint,
        trainer::hooks::Checkup,
        trainer::hooks::ClipGradNorm,
        trainer::hooks::ClipGradValue,
        trainer::hooks::CudaMemoryMonitor,
        trainer::hooks::CutMix,
        trainer::hooks::DataParallel,
        trainer::hooks::DeadUnits,
        trainer::hooks::Distillation,
        trainer::hooks::EarlyStopping,
        trainer::hooks::Ema,
        trainer::hooks::FeatureRecorder,
        trainer::hooks::FieldSchedule,
        trainer::hooks::Freeze,
        trainer::hooks::GradientNoise,
        trainer::hooks::HyperparameterMonitor,
        trainer::hooks::HyperparameterSchedule,
        trainer::hooks::KernelProfiler,
        trainer::hooks::LabelSmoothing,
        trainer::hooks::LocalSgd,
        trainer::hooks::Lookahead,
        trainer::hooks::Lora,
        trainer::hooks::HyperparameterSchedule,
        trainer::hooks::MixUp,
        trainer::hooks::ModelSummary,
        trainer::hooks::NanGuard,
        trainer::hooks::ParameterMonitor,
        trainer::hooks::Progress,
        trainer::hooks::RankMonitor,
        trainer::hooks::ReduceOnPlateau,
        trainer::hooks::Sam,
        trainer::hooks::SaturatedUnits,
        trainer::hooks::SpikeGuard,
        trainer::hooks::StochasticDepth,
        trainer::hooks::Swa,
        trainer::hooks::ThroughputMonitor,
        trainer::loggers::Console,
        trainer::loggers::Csv,
        trainer::loggers::JsonLines,
        trainer::loggers::Report,
        trainer::loggers::TapeFile,
        trainer::loggers::TensorBoard,
        trainer::loggers::ToFile,
        trainer::metrics::MetricHook,
    ]
    .to_vec();
    // The trainer adds it to a replay.
    public.push("trainer::tools::replay::end::EndOfReplay".to_owned());
    // Of optional features, which may be on.
    let optional = [
        "hooks::Dashboard",
        "hooks::GpuMonitor",
        "hooks::SystemMonitor",
        "loggers::MlFlow",
        "loggers::Wandb",
    ];
    public.extend(optional.map(|path| format!("trainer::{path}")));
    let shown = trainer::__private::paths_of_hooks();
    assert!(shown.len() >= 37, "{shown:?}");
    for path in shown {
        assert!(public.contains(&path), "`{path}` is not a public path, or not in this list");
    }
    // What the table shows can be excluded.
    let builder = || model::builder().clip_grad_norm(1.0).hook(trainer::hooks::Progress::new());
    let rows = |trainer: Trainer<_>| trainer.describe_hooks().only_used().rows().count();
    let all = rows(builder().build().unwrap());
    for path in ["trainer::hooks::ClipGradNorm", "trainer::hooks::Progress"] {
        assert!(builder().build().unwrap().describe_hooks().to_string().contains(path));
        assert!(rows(builder().without(path).build().unwrap()) < all, "{path}");
    }
}

/// A type with a hook.
struct Forgotten;

#[hook]
impl Forgotten {
    fn note(&mut self, _: &Cx<AfterStep>) {}
}

#[test]
fn hook_types_that_were_never_added_are_listed_on_request() {
    let name = "it::describe::Forgotten";
    let without = model::builder().build().unwrap().describe_hooks();
    assert!(without.not_added().contains(&name));
    assert!(without.not_added().iter().all(|path| !path.starts_with("trainer::")));
    let with = model::builder().hook(Forgotten).build().unwrap().describe_hooks();
    assert!(!with.not_added().contains(&name));
    assert_eq!(with.not_added().len() + 1, without.not_added().len());
}
