//! Settings of a program from defaults, a file and the command line: messages about mistakes,
//! precedence, help, records, resumes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::{ProptestConfig, prop, prop_assert_eq, proptest};
use serde_json::Value as Json;
use trainer::TrainerBuilder;
use trainer::cli::{SettingsParser, TrainerArgs, clap, float};
use trainer::hooks::Checkpoint;
use trainer::prelude::*;

use crate::model::{self, builder};
use crate::support::{cancelled_at, child_process, scratch};

/// Classifies digits.
#[derive(clap::Args, Debug)]
struct Program {
    /// Learning rate
    #[arg(long, default_value_t = 1e-3, value_parser = float(1e-9..))]
    lr: f64,
    /// Units of the hidden layer
    #[arg(long, default_value_t = 256, value_name = "UNITS", value_parser = clap::value_parser!(i64).range(1..=4096))]
    width: i64,
    /// Share of the units that dropout removes
    #[arg(long, default_value_t = 0.1, value_name = "SHARE", value_parser = float(0.0..1.0))]
    dropout: f64,
    /// Temperature of the samples
    #[arg(long, default_value_t = 1.0)]
    temperature: f64,
    /// Function after the hidden layer
    #[arg(long, value_enum, default_value_t = Activation::Relu)]
    activation: Activation,
    /// Rotates and shifts the images
    #[arg(long)]
    augment: bool,
    /// Folder with the data
    #[arg(long, default_value = "data", value_name = "FOLDER")]
    data_folder: PathBuf,
    /// Label of the run
    #[arg(long)]
    label: Option<String>,
    /// Units of the layers of the head
    #[arg(long, default_values_t = [64, 32], value_name = "UNITS")]
    head: Vec<u32>,
    /// Coefficients of the moving averages
    #[arg(long, num_args = 2, default_values_t = [0.9, 0.999], value_name = "BETA")]
    betas: Vec<f64>,
    /// Threads that load data
    #[arg(long, default_value_t = 4, value_name = "THREADS")]
    workers: usize,
    #[command(flatten)]
    encoder: Encoder,
}

#[derive(clap::Args, Debug)]
struct Encoder {
    /// Layers of the encoder
    #[arg(id = "encoder.depth", long, default_value_t = 3, value_name = "LAYERS")]
    depth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Activation {
    Relu,
    Gelu,
    Tanh,
}

/// Returns the settings that the program reads with this file and command line.
fn parse(parser: &SettingsParser, file: Option<&str>, arguments: &[&str]) -> Result<(Program, TrainerArgs)> {
    parse_as(parser, file, arguments)
}

fn parse_as<S: clap::Args>(
    parser: &SettingsParser,
    file: Option<&str>,
    arguments: &[&str],
) -> Result<(S, TrainerArgs)> {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let nth = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = scratch(&format!("cli-{nth}"));
    let path = folder.join("run.toml");
    let mut all = vec!["digits".to_owned()];
    if let Some(text) = file {
        fs::write(&path, text).unwrap();
        all.extend(["--config".to_owned(), path.display().to_string()]);
    }
    all.extend(arguments.iter().map(ToString::to_string));
    let parsed = parser.parse_from(all);
    fs::remove_dir_all(&folder).unwrap();
    parsed.map_err(|error| Error::msg(error.to_string().replace(&format!("{}/", folder.display()), "")))
}

fn mistake<S: clap::Args>(file: Option<&str>, arguments: &[&str]) -> String {
    match parse_as::<S>(&SettingsParser::new(), file, arguments) {
        Ok(_) => "no mistake".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_mistake_is_reported_with_its_location_and_the_fix() {
    let files = [
        // Names.
        "epohcs = 10",
        "# comment\n\nmax-steps = 10",
        "qqqq = 1",
        "[encoder]\ndept = 3",
        "depth = 3",
        "[encoder]\nlr = 0.1",
        "config = \"other.toml\"",
        "lr = 0.1\nlr = 0.2",
        // Types.
        "lr = \"fast\"",
        "lr = \"0.1\"",
        "epochs = 2.5",
        "epochs = \"2\"",
        "augment = \"yes\"",
        "augment = \"true\"",
        "augment = 1",
        "label = 5",
        "data_folder = true",
        "lr = [0.1, 0.2]",
        "lr = {start = 0.1}",
        "head = [64, \"many\"]",
        "head = [[64]]",
        "betas = [0.9]",
        "seed = 2024-05-01",
        "activation = \"rellu\"",
        "precision = \"bf-16\"",
        "max_time = 90",
        "validate_every = 500",
        "validate_every = \"step:500\"",
        "device = \"gpu\"",
        // Ranges.
        "lr = 0",
        "lr = nan",
        "dropout = 1.0",
        "width = 5000",
        "epochs = 0",
        "workers = -1",
        "encoder.depth = 5_000_000_000",
        "limit_train_batches = 1.5",
        "limit_valid_batches = 0",
        "record_every = \"epochs:2\"",
        "max_time = \"0s\"",
        "clip_grad_norm = -1.0",
        "run_folder = \"numbered:\"",
        // The file itself, and several mistakes at once.
        "lr = ",
        "lr 0.1",
        "lr = 0.1\n[encoder\ndepth = 3",
        "epohcs = 3\nlr = \"fast\"\nwidth = 10\ndropout = 2.0",
    ];
    let command_lines: [&[&str]; 18] = [
        &["--epohcs", "10"],
        &["--learning_rate", "0.1"],
        &["--depth", "2"],
        &["--qqqq"],
        &["10"],
        &["--augment", "maybe"],
        &["--lr", "fast"],
        &["--lr", "-1"],
        &["--lr"],
        &["--lr="],
        &["--lr", "0.1", "--lr", "0.2"],
        &["--width", "0"],
        &["--activation", "rellu"],
        &["--betas", "0.9"],
        &["--record_every", "steps"],
        &["--config", "missing/run.toml"],
        &["--config", "/"],
        &["--config"],
    ];
    let mut all = String::new();
    for file in files {
        let message = mistake::<Program>(Some(file), &[]);
        all += &format!("{}\n=> {message}\n\n", file.replace('\n', " ⏎ "));
    }
    for arguments in command_lines {
        all += &format!("{}\n=> {}\n\n", arguments.join(" "), mistake::<Program>(None, arguments));
    }
    all += &format!("{}\n", mistake::<Program>(Some("epohcs = 3"), &["--lr", "fast"]));
    assert!(!all.contains("no mistake"), "{all}");
    insta::assert_snapshot!(all);
}

/// Settings that cannot be declared in this way.
mod wrong {
    use super::clap;

    #[derive(clap::Args)]
    pub(super) struct OfTrainer {
        #[arg(long)]
        _seed: Option<u64>,
        #[arg(long)]
        pub(super) seed: Option<u64>,
    }

    #[derive(clap::Args)]
    pub(super) struct OfParser {
        #[arg(long)]
        pub(super) config: Option<String>,
    }

    #[derive(clap::Args)]
    pub(super) struct Inner {
        #[arg(id = "inner", long = "width")]
        pub(super) width: Option<u64>,
    }

    #[derive(clap::Args)]
    pub(super) struct Twice {
        #[arg(long)]
        pub(super) width: Option<u64>,
        #[command(flatten)]
        pub(super) inner: Inner,
    }

    #[derive(clap::Args)]
    pub(super) struct Positional {
        pub(super) data: Option<String>,
    }

    #[derive(clap::Args)]
    pub(super) struct Counted {
        #[arg(short, long, action = clap::ArgAction::Count)]
        pub(super) verbose: u8,
    }

    #[derive(clap::Args)]
    pub(super) struct Negated {
        #[arg(long = "no-shuffle", action = clap::ArgAction::SetFalse)]
        pub(super) shuffle: bool,
    }

    #[derive(clap::Args)]
    pub(super) struct Short {
        #[arg(short = 'h', long)]
        pub(super) height: Option<u64>,
    }

    #[derive(clap::Args)]
    pub(super) struct SameShort {
        #[arg(short, long)]
        pub(super) width: Option<u64>,
        #[arg(short, long)]
        pub(super) words: Option<u64>,
    }

    pub(super) mod other {
        use super::clap;

        #[derive(clap::Args)]
        pub(crate) struct TrainerArgs {
            #[arg(long)]
            pub(crate) width: Option<u64>,
        }
    }

    #[derive(clap::Args)]
    pub(super) struct Flattened {
        #[command(flatten)]
        pub(super) args: trainer::cli::TrainerArgs,
    }
}

#[test]
fn conflicting_and_unnamed_settings_are_refused_at_startup() {
    let refused = [
        mistake::<wrong::OfTrainer>(None, &[]),
        mistake::<wrong::Flattened>(None, &[]),
        mistake::<wrong::OfParser>(None, &[]),
        mistake::<wrong::Twice>(None, &[]),
        mistake::<wrong::other::TrainerArgs>(None, &[]),
        mistake::<wrong::Positional>(None, &[]),
        mistake::<wrong::Counted>(None, &[]),
        mistake::<wrong::Negated>(None, &[]),
        mistake::<wrong::Short>(None, &[]),
        mistake::<wrong::SameShort>(None, &[]),
    ];
    let of_parser = [
        SettingsParser::new().default_value("epohcs", 3),
        SettingsParser::new().default_value("epochs", "many"),
        SettingsParser::new().may_change("worker"),
        SettingsParser::new().may_change("epochs"),
    ];
    let of_parser = of_parser.map(|parser| parse(&parser, None, &[]).unwrap_err().to_string());
    insta::assert_snapshot!(format!("{}\n{}", refused.join("\n"), of_parser.join("\n")));
}

#[test]
fn required_and_exclusive_settings_are_explained() {
    #[derive(clap::Args, Debug)]
    struct Strict {
        /// The data.
        #[arg(long)]
        data: String,
        #[arg(long, conflicts_with = "cosine")]
        linear: bool,
        #[arg(long)]
        cosine: bool,
    }
    let all = [
        mistake::<Strict>(None, &[]),
        mistake::<Strict>(Some("data = \"a\"\nlinear = true\ncosine = true"), &[]),
        mistake::<Strict>(Some("data = 3"), &[]),
    ];
    insta::assert_snapshot!(all.join("\n"));
    let (strict, _) =
        parse_as::<Strict>(&SettingsParser::new(), Some("data = \"a\""), &["--linear"]).unwrap();
    assert_eq!((strict.data.as_str(), strict.linear, strict.cosine), ("a", true, false));
}

#[test]
fn help_shows_every_setting_with_its_default_and_unit() {
    let parser = SettingsParser::new().default_value("epochs", 20).default_value("record_every", "steps:20");
    let help = parser.help::<Program>("digits", 80).unwrap();
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    insta::assert_snapshot!(help);
    let described = help.matches("[default:").count();
    let arguments = help.lines().filter(|line| line.trim_start().starts_with("--")).count();
    assert_eq!(described, arguments, "{help}");
}

#[test]
fn values_in_a_file_are_parsed_like_those_on_the_command_line() {
    let file = "
        lr = 3e-4
        width = 0x40
        activation = \"gelu\"
        augment = true
        data_folder = \"-data\"
        label = 'a = \"b\"'
        head = [1, 2, 3]
        betas = [-0.5, 0.99]
        max_time = \"1h 30m\"
        validate_every = \"fraction:0.25\"
        limit_train_batches = 0.5
        limit_valid_batches = 1_000
        device = \"cpu\"
        run_folder = \"numbered:runs\"
        resume = \"auto\"
        without = [\"a::b\", \"c::d\"]
        deterministic = true
        [encoder]
        depth = 7
    ";
    let (program, args) = parse(&SettingsParser::new(), Some(file), &[]).unwrap();
    let arguments = [
        "--lr=3e-4",
        "--width=64",
        "--activation=gelu",
        "--augment",
        "--data_folder=-data",
        "--label=a = \"b\"",
        "--head=1",
        "--head=2",
        "--head=3",
        "--betas",
        "-0.5",
        "0.99",
        "--max_time=90min",
        "--validate-every=fraction:0.25",
        "--limit-train-batches",
        "0.5",
        "--limit_valid_batches",
        "1000",
        "--device=cpu",
        "--run_folder=numbered:runs",
        "--resume=auto",
        "--without=a::b",
        "--without=c::d",
        "--deterministic",
        "true",
        "--encoder.depth",
        "7",
    ];
    let (same, same_args) = parse(&SettingsParser::new(), None, &arguments).unwrap();
    assert_eq!(format!("{program:?}"), format!("{same:?}"));
    // The record has the width as the program reads it, and the same digits.
    assert_eq!(format!("{args:?}"), format!("{same_args:?}"));
    assert_eq!((program.width, program.head, program.betas), (64, vec![1, 2, 3], vec![-0.5, 0.99]));
    assert_eq!(program.data_folder, Path::new("-data"));
    assert_eq!((program.encoder.depth, program.label.as_deref()), (7, Some("a = \"b\"")));
    assert_eq!(args.max_time, Some(std::time::Duration::from_secs(5400)));
    assert_eq!(args.validate_every, Some(Every::Fraction(0.25)));
    assert_eq!(args.resume, Some(Resume::Auto));
    assert_eq!(args.without, ["a::b", "c::d"]);
}

#[test]
fn the_command_line_replaces_lists_and_switches_of_the_file() {
    let parser = SettingsParser::new().default_value("deterministic", true).default_value("without", "a");
    let read = |file: &str, arguments: &[&str]| parse(&parser, Some(file), arguments).unwrap();
    let (program, args) = read("head = [1, 2]\naugment = true", &["--head", "9", "--augment", "false"]);
    assert_eq!((program.head, program.augment, args.deterministic), (vec![9], false, true));
    let (program, args) = read("head = []\nwithout = []\ndeterministic = false", &[]);
    assert_eq!((program.head, args.without, args.deterministic), (vec![], vec![], false));
    let (program, args) = read("", &["--deterministic=false"]);
    assert_eq!((program.head, args.without, args.deterministic), (vec![64, 32], vec!["a".to_owned()], false));
}

/// Returns `run.json` of a run with these settings.
fn recorded(parser: &SettingsParser, file: Option<&str>, arguments: &[&str]) -> BTreeMap<String, Json> {
    let (program, args) = parse(parser, file, arguments).unwrap();
    let folder = scratch(&format!("cli-recorded-{}", arguments.len()));
    let builder = args.apply(Trainer::builder(model::task()).discover(Discover::None).epochs(1));
    let mut trainer = builder.optimizer(Sgd::new(program.lr)).run_folder(folder.join("run")).build().unwrap();
    trainer.fit(&mut model::rows(4), None).unwrap();
    let text = fs::read_to_string(folder.join("run/run.json")).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let run: Json = serde_json::from_str(&text).unwrap();
    serde_json::from_value(run["hyperparameters"].clone()).unwrap()
}

#[test]
fn the_settings_of_a_run_are_read_by_another_program() {
    let parser = SettingsParser::new().default_value("dropout", 0.5);
    let file = "width = 64\nhead = [8, 16]\nbetas = []\nlabel = \"7\"\n[encoder]\ndepth = 2";
    let (program, args) = parse(&parser, Some(file), &["--lr", "1e-2", "--augment"]).unwrap();
    let folder = scratch("cli-of-run").join("run");
    let builder = args.apply(Trainer::builder(model::task()).discover(Discover::None).epochs(1));
    let mut trainer = builder.optimizer(Sgd::new(program.lr)).run_folder(&folder).build().unwrap();
    trainer.fit(&mut model::rows(4), None).unwrap();
    let same = parser.of_run::<Program>(&folder).unwrap();
    assert_eq!(format!("{program:?}"), format!("{same:?}"));

    let path = folder.join("run.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"width\": 64.0", "\"width\": \"wide\"")).unwrap();
    let error = parser.of_run::<Program>(&folder).unwrap_err().to_string();
    assert!(error.contains("run.json: `width` is `wide`: "), "{error}");
    fs::write(&path, text.replace("\"width\": 64.0", "\"other\": 1.0")).unwrap();
    let other = parser.of_run::<Program>(&folder);
    assert!(other.is_ok() || other.unwrap_err().to_string().contains("width"));
    let error = parser.of_run::<Program>(folder.parent().unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("this folder holds no run: it has no `run.json`"), "{error}");
    fs::remove_dir_all(folder.parent().unwrap()).unwrap();
}

#[test]
fn every_setting_is_recorded_as_a_hyperparameter_under_its_own_name() {
    let file = Some("width = 64\nhead = [8]\n[encoder]\ndepth = 2");
    let values = recorded(&SettingsParser::new(), file, &["--lr", "1e-2", "--augment", "--epochs", "3"]);
    let expected: BTreeMap<&str, Json> = BTreeMap::from([
        ("lr", 0.01.into()),
        ("width", 64.0.into()),
        ("dropout", 0.1.into()),
        ("temperature", 1.0.into()),
        ("activation", "relu".into()),
        ("augment", true.into()),
        ("data_folder", "data".into()),
        ("head", "[8]".into()),
        ("betas", "[0.9, 0.999]".into()),
        ("workers", 4.0.into()),
        ("encoder.depth", 2.0.into()),
        ("epochs", 3.0.into()),
    ]);
    for (name, value) in expected {
        assert_eq!(values.get(name), Some(&value), "{name} in {values:?}");
    }
    assert_eq!(values.get("label"), None);
}

#[test]
fn an_unused_or_duplicate_setting_is_refused() {
    let build = |use_settings: fn(&TrainerArgs, TrainerBuilder<_>) -> TrainerBuilder<_>| {
        let (_, args) = parse(&SettingsParser::new(), None, &["--lr", "0.1"]).unwrap();
        fn message<T: Task>(builder: TrainerBuilder<T>) -> String {
            builder.build().map_or_else(|error| error.to_string(), |_| "built".to_owned())
        }
        message(use_settings(&args, builder()))
    };
    // The optimizer's learning rate is that of the setting.
    assert_eq!(build(|args, builder| args.apply(builder)), "built");
    let refused = [
        build(|args, builder| args.apply(builder).optimizer(Sgd::new(0.2))),
        build(|args, builder| args.apply(builder).hyperparameter("width", 3)),
        build(|args, builder| args.apply(builder.hyperparameter("encoder.depth", 3))),
        build(|args, builder| args.apply(args.apply(builder))),
    ];
    insta::assert_snapshot!(refused.join("\n"));
}

#[test]
fn a_resume_says_which_settings_differ() {
    let folder = scratch("cli-resume");
    let parser = SettingsParser::new().may_change("workers").default_value("epochs", 3);
    let make = |arguments: &[&str]| {
        let (_, args) = parse(&parser, None, arguments).unwrap();
        args.apply(builder().optimizer(Sgd::new(1e-3)).hook(Checkpoint::new(&folder)).resume(Resume::Auto))
    };
    let mut trainer = cancelled_at(Some(4), make(&[])).build().unwrap();
    assert!(trainer.fit(&mut model::rows(12), None).unwrap_err().is_cancelled());
    drop(trainer);

    let changed = ["--width", "64", "--label", "b", "--workers", "8", "--epochs", "4", "--accumulate", "2"];
    let mut trainer = cancelled_at(None, make(&changed)).build().unwrap();
    let error = trainer.fit(&mut model::rows(12), None).unwrap_err().to_string();
    insta::assert_snapshot!(error.replace(&folder.display().to_string(), "[folder]"));
    drop(trainer);

    fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "run by another test in a child process"]
fn resumes_with_more_workers() {
    let folder = scratch("cli-workers");
    let parser = SettingsParser::new().may_change("workers").default_value("epochs", 3);
    let make = |arguments: &[&str]| {
        let (_, args) = parse(&parser, None, arguments).unwrap();
        args.apply(builder().optimizer(Sgd::new(1e-3)).hook(Checkpoint::new(&folder)).resume(Resume::Auto))
    };
    let mut trainer = cancelled_at(Some(4), make(&[])).build().unwrap();
    assert!(trainer.fit(&mut model::rows(12), None).unwrap_err().is_cancelled());
    drop(trainer);
    let mut trainer = cancelled_at(None, make(&["--workers", "8"])).build().unwrap();
    assert_eq!(trainer.fit(&mut model::rows(12), None).unwrap().counters.epoch, 2);
    drop(trainer);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_setting_that_may_change_is_reported_and_does_not_prevent_a_resume() {
    let output = child_process("cli::resumes_with_more_workers").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    let line = "`--workers` was 4 when the checkpoint was written; the current value, 8, applies";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_changed_setting_explains_a_shape_mismatch() {
    #[derive(clap::Args)]
    struct Width {
        #[arg(long, default_value_t = 8)]
        width: i64,
    }
    let folder = scratch("cli-width");
    let fit = |arguments: &[&str]| {
        let (settings, args) = parse_as::<Width>(&SettingsParser::new(), None, arguments)?;
        let vs = nn::VarStore::new(Device::Cpu);
        let net = nn::seq()
            .add(nn::linear(vs.root() / "fc1", 4, settings.width, Default::default()))
            .add(nn::linear(vs.root() / "fc2", settings.width, 3, Default::default()));
        let task =
            Supervised::new(vs, net, |pred: &Tensor, labels: &Tensor| pred.cross_entropy_for_logits(labels));
        let builder = args.apply(Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None));
        builder.hook(Checkpoint::new(&folder)).resume(Resume::Auto).build()?.fit(&mut model::rows(8), None)
    };
    fit(&["--width", "8"]).unwrap();
    let error = fit(&["--width", "16", "--epochs", "2"]).unwrap_err().to_string();
    fs::remove_dir_all(&folder).unwrap();
    insta::assert_snapshot!(error.replace(&folder.display().to_string(), "[folder]"));
}

/// A key of the program, with three values: as the file has them, and as the command line has them.
const KEYS: [(&str, [&str; 3]); 27] = [
    ("lr", ["0.1", "0.2", "0.3"]),
    ("width", ["1", "2", "3"]),
    ("dropout", ["0.5", "0.25", "0.0"]),
    ("activation", ["\"gelu\"", "\"tanh\"", "\"relu\""]),
    ("augment", ["true", "false", "true"]),
    ("data_folder", ["\"a\"", "\"b c\"", "\"d=e\""]),
    ("label", ["\"a\"", "\"b\"", "\"--c\""]),
    ("workers", ["1", "2", "3"]),
    ("encoder.depth", ["1", "2", "4"]),
    ("epochs", ["2", "3", "4"]),
    ("min_epochs", ["1", "2", "0"]),
    ("max_steps", ["10", "20", "30"]),
    ("min_steps", ["1", "2", "0"]),
    ("max_time", ["\"1h\"", "\"2h\"", "\"3h\""]),
    ("limit_train_batches", ["1", "0.5", "3"]),
    ("limit_valid_batches", ["1", "0.5", "3"]),
    ("limit_test_batches", ["1", "0.5", "3"]),
    ("limit_predict_batches", ["1", "0.5", "3"]),
    ("validate_every", ["\"epochs:1\"", "\"steps:7\"", "\"fraction:0.5\""]),
    ("record_every", ["\"epochs:1\"", "\"steps:7\"", "\"steps:8\""]),
    ("sanity_batches", ["1", "2", "0"]),
    ("accumulate", ["1", "2", "3"]),
    ("clip_grad_norm", ["1.0", "2.0", "3.5"]),
    ("seed", ["1", "2", "3"]),
    ("deterministic", ["true", "false", "true"]),
    ("detect_anomaly", ["true", "false", "true"]),
    ("precision", ["\"f32\"", "\"bf16\"", "\"fp16\""]),
];

/// Returns the settings as text, by name.
fn shown(parsed: &(Program, TrainerArgs)) -> String {
    format!("{parsed:?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// For each key, the command line wins over the file, and the file over the program's default.
    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_defaults(
        choices in prop::collection::vec((prop::option::of(0..3usize), prop::option::of(0..3usize), prop::option::of(0..3usize)), KEYS.len())
    ) {
        let mut parser = SettingsParser::new();
        let mut file = String::new();
        let mut arguments = Vec::new();
        let mut effective = Vec::new();
        for ((name, values), (by_default, in_file, on_command_line)) in KEYS.iter().zip(choices) {
            let plain = |nth: usize| values[nth].trim_matches('"').to_owned();
            if let Some(nth) = by_default {
                parser = parser.default_value(*name, plain(nth));
            }
            if let Some(nth) = in_file {
                file += &format!("{name} = {}\n", values[nth]);
            }
            if let Some(nth) = on_command_line {
                arguments.push(format!("--{name}={}", plain(nth)));
            }
            if let Some(nth) = on_command_line.or(in_file).or(by_default) {
                effective.push(format!("--{name}={}", plain(nth)));
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let effective: Vec<&str> = effective.iter().map(String::as_str).collect();
        let mixed = parse(&parser, Some(&file), &arguments).unwrap();
        let plain = parse(&SettingsParser::new(), None, &effective).unwrap();
        prop_assert_eq!(shown(&mixed), shown(&plain));
    }
}

#[test]
#[ignore = "run by another test in a child process"]
fn prints_the_run_folder() {
    let read = |file: Option<&str>, arguments: &[&str]| {
        parse(&SettingsParser::new(), file, arguments).unwrap().1.run_folder
    };
    let file = Some("run_folder = \"of_file\"");
    println!("{:?}\n{:?}\n{:?}", read(None, &[]), read(file, &[]), read(file, &["--run_folder", "given"]));
}

#[test]
fn the_run_folder_in_the_environment_overrides_the_file_but_not_the_command_line() {
    let folders = |value: &str| {
        let mut command = child_process("cli::prints_the_run_folder");
        let output = command.env("TRAINER_RUN_FOLDER", value).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let paths = text.lines().filter_map(|line| line.split("path: \"").nth(1)?.split('"').next());
        paths.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(folders("runs/7"), ["runs/7", "runs/7", "given"]);
    assert_eq!(folders(""), ["of_file", "given"]);
}
