//! Settings of a program, read from their defaults, a file and the command line. Requires the cargo
//! feature `cli`.
//!
//! [`parse`] reads two sets of settings: those of the program, which are the fields of a struct
//! with clap's derive, and those of the trainer, [`TrainerArgs`]. See the
//! [guide](crate::guide::settings) for more.

mod args;
mod file;
mod mistakes;
mod names;
mod values;

#[cfg(test)]
mod tests;

use std::any::type_name;
use std::ffi::OsString;
use std::iter;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

pub use args::{Precision, TrainerArgs};
/// The `clap` crate, in the version that this crate uses.
pub use clap;
pub use values::float;

use crate::error::{Error, Result};
use crate::io::terminal::print_line;
use crate::run::run_folder::load_run_file;
use crate::values::hyperparameter::{Given, GivenBy};
use file::{FileSetting, Value};
use names::Kind;

/// The name of the argument that takes the path of the settings file.
const CONFIG: &str = "config";

/// The environment variable with the run folder, for programs that start runs.
const RUN_FOLDER: &str = "TRAINER_RUN_FOLDER";

/// Reads the settings of the program and of the trainer from their defaults, from the file that
/// `--config` names, and from the command line, in increasing order of precedence.
///
/// ```no_run
/// use trainer::cli::clap;
/// use trainer::prelude::*;
///
/// #[derive(clap::Args)]
/// struct Settings {
///     /// Learning rate
///     #[arg(long, default_value_t = 1e-3)]
///     lr: f64,
///     /// Units of the hidden layer
///     #[arg(long, default_value_t = 256, value_name = "UNITS")]
///     width: i64,
/// }
///
/// # fn task(width: i64) -> impl Task<Batch = Tensor> {
/// #     let vs = nn::VarStore::new(Device::Cpu);
/// #     let net = nn::linear(vs.root(), width, 1, Default::default());
/// #     struct Net(nn::VarStore, nn::Linear);
/// #     impl Task for Net {
/// #         type Batch = Tensor;
/// #         type Pred = Tensor;
/// #         fn vars(&self) -> &nn::VarStore { &self.0 }
/// #         fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> { Ok(batch.apply(&self.1)) }
/// #         fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> { Ok(pred.mean(None)) }
/// #     }
/// #     Net(vs, net)
/// # }
/// fn main() -> Result<()> {
///     let (settings, args) = trainer::cli::parse::<Settings>()?;
///     let builder = Trainer::builder(task(settings.width)).optimizer(AdamW::new(settings.lr));
///     let mut trainer = args.apply(builder).build()?;
///     // …
///     # Ok(())
/// }
/// ```
///
/// `--help` prints all settings and ends the program.
///
/// # Errors
///
/// Returns an error if a setting is invalid or missing, if the file cannot be read, or if the
/// program declares its settings incorrectly. The error lists every invalid setting in the file
/// with its line, and the first mistake on the command line, if any.
pub fn parse<S: Args>() -> Result<(S, TrainerArgs)> {
    SettingsParser::new().parse()
}

/// Reads settings like [`parse`], but lets the program set defaults and allow changes on resume.
///
/// ```
/// use trainer::cli::{SettingsParser, clap};
///
/// #[derive(clap::Args)]
/// struct Settings {
///     /// Threads that load data
///     #[arg(long, default_value_t = 4)]
///     workers: usize,
/// }
///
/// let parser = SettingsParser::new().default_value("epochs", 20).may_change("workers");
/// let (settings, args) = parser.parse_from::<Settings>(["digits", "--workers", "8"])?;
/// assert_eq!((settings.workers, args.epochs), (8, Some(20)));
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SettingsParser {
    defaults: Vec<(String, String)>,
    changeable: Vec<String>,
}

/// The reason why reading the settings ended without a result.
enum Stopped {
    /// Help was requested, with this text.
    Help(String),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Stopped::Failed(error)
    }
}

impl SettingsParser {
    /// Creates a parser that reads settings exactly like [`parse`](parse()).
    #[must_use]
    pub fn new() -> Self {
        SettingsParser::default()
    }

    /// Sets the default of a setting of the program or of the trainer, such as `epochs`.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "a call takes a number as it is")]
    pub fn default_value(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.defaults.push((name.into(), value.to_string()));
        self
    }

    /// Declares that this setting of the program may change when a run resumes.
    ///
    /// Use this when results do not depend on the setting, such as the number of threads that load
    /// data. A resume then only reports the change, and the processes that train together may have
    /// different values.
    #[must_use]
    pub fn may_change(mut self, name: impl Into<String>) -> Self {
        self.changeable.push(name.into());
        self
    }

    /// Reads the settings, using the command line of this process.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`parse`](parse()).
    pub fn parse<S: Args>(&self) -> Result<(S, TrainerArgs)> {
        self.parse_from(std::env::args_os())
    }

    /// Reads the settings, using these arguments as the command line. The first of them is the name
    /// of the program.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`parse`](parse()).
    pub fn parse_from<S: Args>(
        &self,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<(S, TrainerArgs)> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let folder = std::env::var_os(RUN_FOLDER).filter(|folder| !folder.is_empty());
        match self.read(&arguments, folder) {
            Ok(settings) => Ok(settings),
            Err(Stopped::Failed(error)) => Err(error),
            Err(Stopped::Help(text)) => {
                print_line(text.trim_end());
                std::process::exit(0)
            }
        }
    }

    /// Returns the settings of the program that trained the run in this folder, so that a program
    /// that predicts builds the same model. A setting that the run does not have gets its default.
    ///
    /// ```no_run
    /// use trainer::cli::{SettingsParser, clap};
    ///
    /// #[derive(clap::Args)]
    /// struct Settings {
    ///     /// Units of the hidden layer
    ///     #[arg(long, default_value_t = 256)]
    ///     width: i64,
    /// }
    ///
    /// let settings = SettingsParser::new().of_run::<Settings>("runs/0001")?;
    /// println!("width {}", settings.width);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the folder holds no run, if a setting is missing or invalid there, or if
    /// the program declares its settings incorrectly.
    pub fn of_run<S: Args>(&self, folder: impl AsRef<Path>) -> Result<S> {
        let folder = folder.as_ref();
        let file = load_run_file(folder)?.ok_or_else(|| {
            Error::usage(format!("{}: this folder holds no run: it has no `run.json`", folder.display()))
        })?;
        let command = self.command::<S>("")?;
        let mut mistakes = Vec::new();
        let mut found = Vec::new();
        for arg in own::<S>()?.get_arguments() {
            let Some(value) = file.hyperparameters.get(names::name(arg)) else { continue };
            let entry = file::entry_of_run(folder, arg, value);
            match arguments_of(&command, arg, &entry) {
                Ok(own) => found.push((entry.name, own)),
                Err(mistake) => {
                    mistakes
                        .push(format!("{}: `{}` is `{}`: {mistake}", entry.place, entry.name, entry.shown));
                }
            }
        }
        if !mistakes.is_empty() {
            return Err(failed(&mistakes));
        }
        let mut command = with_empty_lists(command, &found);
        let arguments = found.into_iter().flat_map(|(_, arguments)| arguments);
        let matches = command.try_get_matches_from_mut(iter::once(OsString::new()).chain(arguments));
        matches.and_then(|matches| S::from_arg_matches(&matches)).map_err(|error| {
            Error::usage(format!("{}: {}", folder.display(), mistakes::of_command_line(&command, &error)))
        })
    }

    /// Returns the text of `--help`, with lines of at most `columns` columns.
    ///
    /// # Errors
    ///
    /// Returns an error if the program declares its settings incorrectly.
    pub fn help<S: Args>(&self, program: &str, columns: usize) -> Result<String> {
        let command = self.command::<S>(program)?.term_width(columns);
        match command.try_get_matches_from([program, "--help"]) {
            Err(help) => Ok(help.to_string()),
            Ok(_) => Err(Error::usage("the program has replaced `--help`")),
        }
    }

    fn read<S: Args>(
        &self,
        arguments: &[OsString],
        folder: Option<OsString>,
    ) -> Result<(S, TrainerArgs), Stopped> {
        let program = arguments.first().map(PathBuf::from);
        let program = program.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let command = self.command::<S>(&program)?;
        // Finds the file, and which settings the command line sets. Errors are reported below, when
        // the arguments are parsed again.
        let first = relaxed(&command).ignore_errors(true).try_get_matches_from(arguments);
        let first = first.map_err(|error| stopped(&command, &error))?;
        let mut mistakes = Vec::new();
        let mut from_file = match first.get_one::<PathBuf>(CONFIG) {
            Some(path) => of_file(&command, path, &mut mistakes)?,
            None => Vec::new(),
        };
        let is_given = |name: &str| {
            let mut args = command.get_arguments();
            let arg = args.find(|arg| names::name(arg) == name);
            let source = arg.and_then(|arg| first.value_source(arg.get_id().as_str()));
            source == Some(ValueSource::CommandLine)
        };
        if let Some(folder) = folder.filter(|_| !is_given("run_folder")) {
            from_file.retain(|(name, _)| name != "run_folder");
            let text = folder.to_string_lossy();
            if let Err(mistake) = values::run_folder(&text) {
                mistakes.push(format!("the environment variable `{RUN_FOLDER}` is `{text}`: {mistake}"));
            } else {
                from_file.push(("run_folder".to_owned(), vec![format!("--run_folder={text}").into()]));
            }
        }
        from_file.retain(|(name, _)| !is_given(name));
        // An empty list in the file replaces a default.
        let command = with_empty_lists(command, &from_file);
        let (program, arguments) = arguments.split_at(arguments.len().min(1));
        let from_file = from_file.iter().flat_map(|(_, arguments)| arguments);
        let all = program.iter().chain(from_file).chain(arguments);
        let matches = match command.clone().try_get_matches_from(all) {
            Ok(matches) if mistakes.is_empty() => matches,
            Ok(_) => return Err(failed(&mistakes).into()),
            // A required setting with an invalid value in the file is not missing.
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument && !mistakes.is_empty() => {
                return Err(failed(&mistakes).into());
            }
            Err(error) => match stopped(&command, &error) {
                Stopped::Failed(error) => {
                    mistakes.push(error.to_string());
                    return Err(failed(&mistakes).into());
                }
                help => return Err(help),
            },
        };
        let settings = S::from_arg_matches(&matches).map_err(|error| stopped(&command, &error))?;
        let args = TrainerArgs::from_arg_matches(&matches).map_err(|error| stopped(&command, &error))?;
        Ok((settings, TrainerArgs { recorded: self.recorded::<S>(&matches)?, ..args }))
    }

    /// Returns clap's command with the settings of the program and of the trainer.
    ///
    /// # Errors
    ///
    /// Returns an error if the program declares its settings incorrectly.
    fn command<S: Args>(&self, program: &str) -> Result<Command> {
        let owner = type_name::<S>();
        let own = own::<S>()?;
        let about = own.get_about().cloned();
        let of_trainer = TrainerArgs::augment_args(Command::new(""));
        let of_trainer = names::named(type_name::<TrainerArgs>(), of_trainer).map_err(Error::usage)?;
        if let Some(clash) = names::clash(owner, &own, &of_trainer) {
            return Err(Error::usage(clash));
        }
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file with settings, which the command line overrides [default: none]");
        let mut command = Command::new(program.to_owned()).arg(config);
        if let Some(about) = about {
            command = command.about(about);
        }
        let args = own.get_arguments().chain(of_trainer.get_arguments()).cloned();
        let groups = own.get_groups().cloned();
        let command = command.args(args.collect::<Vec<_>>()).groups(groups.collect::<Vec<_>>());
        let own: Vec<&str> = mistakes::names(&own).collect();
        for name in &self.changeable {
            if !own.contains(&name.as_str()) {
                let help = crate::error::did_you_mean(name, own.iter().copied());
                return Err(Error::usage(format!(
                    "`.may_change(\"{name}\")`: `{owner}` has no field of this name{help}"
                )));
            }
        }
        self.defaults.iter().try_fold(command, |command, (name, value)| with_default(command, name, value))
    }

    /// Returns the settings of the program as hyperparameters to record.
    fn recorded<S: Args>(&self, matches: &ArgMatches) -> Result<Vec<Given>> {
        let own = own::<S>()?;
        let values = own.get_arguments().filter_map(|arg| {
            let texts = matches.get_raw(arg.get_id().as_str()).map(Iterator::collect::<Vec<_>>);
            // A list that replaces its default by nothing has no values.
            let texts = texts.or_else(|| {
                let is_emptied = names::is_list(arg) && !arg.get_default_values().is_empty();
                is_emptied.then(Vec::new)
            })?;
            let texts: Vec<String> =
                texts.into_iter().map(|text| text.to_string_lossy().into_owned()).collect();
            let name = names::name(arg).to_owned();
            let may_change = self.changeable.contains(&name);
            let by = if may_change { GivenBy::ChangeableSetting } else { GivenBy::Setting };
            Some(Given { name, value: names::hyperparameter(arg, &texts), by })
        });
        Ok(values.collect())
    }
}

/// Removes the defaults of the lists that are given without a value.
fn with_empty_lists(command: Command, given: &[(String, Vec<OsString>)]) -> Command {
    command.mut_args(|arg| {
        let is_empty = given.iter().any(|(name, values)| values.is_empty() && name == names::name(&arg));
        if is_empty { arg.default_values(Vec::<OsString>::new()) } else { arg }
    })
}

/// Returns the settings of the struct `S` as the arguments of a command.
fn own<S: Args>() -> Result<Command> {
    names::named(type_name::<S>(), S::augment_args(Command::new(""))).map_err(Error::usage)
}

/// Sets the default of a setting. In the help of the setting, this default replaces the original
/// one.
fn with_default(command: Command, name: &str, value: &str) -> Result<Command> {
    let call = format!("`.default_value(\"{name}\", …)`");
    let Some(arg) = command.get_arguments().find(|arg| names::name(arg) == name) else {
        return Err(Error::usage(format!("{call}: {}", mistakes::unknown(&command, name, ""))));
    };
    if let Err(error) = relaxed(&command).try_get_matches_from(["", &format!("--{name}={value}")])
        && let Some(mistake) = mistakes::value_mistake(arg, &error)
    {
        return Err(Error::usage(format!("{call}: the value is `{value}`: {mistake}")));
    }
    let id = arg.get_id().clone();
    let value = value.to_owned();
    Ok(command.mut_arg(id, |arg| {
        // The help describes the argument's original default.
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.split("[default:").next().unwrap_or_default().trim_end().to_owned();
        arg.help(help).default_value(value).required(false)
    }))
}

/// Returns a copy of the command in which no argument and no group is required.
fn relaxed(command: &Command) -> Command {
    let groups: Vec<_> = command.get_groups().map(|group| group.get_id().clone()).collect();
    let command = command.clone().mut_args(|arg| arg.required(false));
    groups.into_iter().fold(command, |command, group| command.mut_group(group, |group| group.required(false)))
}

/// Reads the settings in a file, and converts them to equivalent command-line arguments. Adds a
/// message to `mistakes` for each invalid setting.
fn of_file(
    command: &Command,
    path: &Path,
    mistakes: &mut Vec<String>,
) -> Result<Vec<(String, Vec<OsString>)>> {
    let find = |name: &str| {
        command.get_arguments().find(|arg| names::name(arg) == name && arg.get_id().as_str() != CONFIG)
    };
    let mut found = Vec::new();
    for entry in file::read(path, |name| find(name).is_some())? {
        let place = &entry.place;
        let Some(arg) = find(&entry.name) else {
            let mistake = if entry.name == CONFIG {
                "`config` is only for the command line: a file of settings cannot load another one".to_owned()
            } else {
                mistakes::unknown(command, &entry.name, "")
            };
            mistakes.push(format!("{place}: {mistake}"));
            continue;
        };
        match arguments_of(command, arg, &entry) {
            Ok(arguments) => found.push((entry.name, arguments)),
            Err(mistake) => {
                mistakes.push(format!("{place}: `{}` is `{}`: {mistake}", entry.name, entry.shown));
            }
        }
    }
    Ok(found)
}

/// Converts a setting in a file to equivalent command-line arguments.
///
/// # Errors
///
/// Returns an error if the value is invalid; the message says what is expected.
fn arguments_of(command: &Command, arg: &Arg, entry: &FileSetting) -> Result<Vec<OsString>, String> {
    let scalars = match &entry.value {
        Value::One(scalar) => std::slice::from_ref(scalar),
        Value::List(list) if names::is_list(arg) => &list[..],
        Value::List(_) => return Err("expected one value, found a list".to_owned()),
        Value::Other(found) => return Err(format!("expected a value, found {found}")),
    };
    for scalar in scalars {
        match (names::kind(arg), scalar.is_string) {
            (Kind::Integer | Kind::Float, true) if scalar.text.parse::<f64>().is_ok() => {
                return Err("expected a number, found a string: remove the quotes".to_owned());
            }
            (Kind::Bool, true) if scalar.text.parse::<bool>().is_ok() => {
                return Err("expected `true` or `false`, found a string: remove the quotes".to_owned());
            }
            (Kind::Text, false) => return Err("expected a string: put it in quotes".to_owned()),
            _ => {}
        }
    }
    let name = format!("--{}", entry.name);
    let arguments: Vec<OsString> = if names::takes_several(arg) && !scalars.is_empty() {
        std::iter::once(name.into()).chain(scalars.iter().map(|scalar| scalar.text.clone().into())).collect()
    } else {
        scalars.iter().map(|scalar| format!("{name}={}", scalar.text).into()).collect()
    };
    let tried = relaxed(command).try_get_matches_from([OsString::new()].iter().chain(&arguments));
    match tried.err().and_then(|error| mistakes::value_mistake(arg, &error)) {
        Some(mistake) => Err(mistake),
        None => Ok(arguments),
    }
}

fn stopped(command: &Command, error: &clap::Error) -> Stopped {
    match error.kind() {
        ErrorKind::DisplayHelp => Stopped::Help(error.to_string()),
        _ => Stopped::Failed(Error::usage(mistakes::of_command_line(command, error))),
    }
}

/// Returns an error that lists these mistakes.
fn failed(mistakes: &[String]) -> Error {
    match mistakes {
        [one] => Error::usage(one),
        many => {
            let listed: String = many.iter().map(|mistake| format!("\n- {mistake}")).collect();
            Error::usage(format!("the settings have {} mistakes:{listed}", many.len()))
        }
    }
}
