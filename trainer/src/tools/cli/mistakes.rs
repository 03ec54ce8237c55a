//! Messages about invalid settings: where they are, what was found, and what is expected.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

use super::names::{Kind, kind, name};
use crate::error::{did_you_mean, nearest};

/// Returns the names of the settings of a command.
pub(super) fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().map(name)
}

/// Returns the message about a name that no setting has. `dashes` is `--` on the command line, and
/// otherwise empty.
pub(super) fn unknown(command: &Command, given: &str, dashes: &str) -> String {
    let names: Vec<&str> =
        names(command).filter(|known| *known != super::CONFIG || !dashes.is_empty()).collect();
    // `width` and `model.width`, `max-steps` and `max_steps` are spellings of one name.
    let spelled = given.trim_start_matches('-').replace('-', "_");
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let same = |known: &&str| *known == spelled || last(known) == spelled || *known == last(&spelled);
    let nearest = names.iter().copied().find(same).or_else(|| nearest(&spelled, names.iter().copied()));
    let help = nearest.map_or_else(
        || "; `--help` lists all settings".to_owned(),
        |nearest| format!("; did you mean `{dashes}{nearest}`?"),
    );
    format!("there is no setting `{given}`{help}")
}

/// Describes what is wrong with the value that clap rejected. Returns `None` if the error is not
/// about a value.
pub(super) fn value_mistake(arg: &Arg, error: &Error) -> Option<String> {
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => Some(expected(arg, error)),
        ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues | ErrorKind::TooManyValues => {
            let values = arg.get_num_args().map_or_else(|| "1".to_owned(), |range| range.to_string());
            Some(format!("expected {values} values"))
        }
        _ => None,
    }
}

/// Returns a description of the values that the setting expects.
fn expected(arg: &Arg, error: &Error) -> String {
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
        && !valid.is_empty()
    {
        let listed: Vec<_> = valid.iter().map(|value| format!("`{value}`")).collect();
        let (last, others) = listed.split_last().unwrap_or((&listed[0], &[]));
        let listed =
            if others.is_empty() { last.clone() } else { format!("{} or {last}", others.join(", ")) };
        let found = text(error, ContextKind::InvalidValue);
        return format!("expected {listed}{}", did_you_mean(&found, valid.iter().map(String::as_str)));
    }
    let own = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    if let Some((_, range)) = own.split_once(" is not in ") {
        return format!("expected an integer {}", bounds(range));
    }
    if own.starts_with("expected") {
        return own;
    }
    match kind(arg) {
        Kind::Integer if text(error, ContextKind::InvalidValue).parse::<i128>().is_ok_and(|it| it < 0) => {
            "expected an integer of at least 0".to_owned()
        }
        Kind::Integer if own.starts_with("number too") => "expected a smaller integer".to_owned(),
        Kind::Integer => "expected an integer".to_owned(),
        Kind::Float => "expected a number".to_owned(),
        Kind::Bool => "expected `true` or `false`".to_owned(),
        _ if arg.get_id() == super::CONFIG => "expected the path of a file".to_owned(),
        Kind::Text | Kind::Other if own.is_empty() => "expected a value".to_owned(),
        Kind::Text | Kind::Other => own,
    }
}

/// Describes a range of integers, `1..=9`, in words.
fn bounds(range: &str) -> String {
    let (start, end) = range.split_once("..").unwrap_or((range, ""));
    // For a range without a limit, clap shows the largest number.
    let is_open =
        end.is_empty() || [u64::MAX.to_string(), i64::MAX.to_string()].contains(&end.replace('=', ""));
    match (start, end.strip_prefix('=')) {
        (start, _) if is_open => format!("of at least {start}"),
        ("", Some(end)) => format!("of at most {end}"),
        ("", None) => format!("below {end}"),
        (start, Some(end)) => format!("from {start} to {end}"),
        (start, None) => format!("from {start} and below {end}"),
    }
}

/// Returns the message about an error on the command line, or about settings that do not fit
/// together.
pub(super) fn of_command_line(command: &Command, error: &Error) -> String {
    const PLACE: &str = "the command line";
    let given = text(error, ContextKind::InvalidArg);
    // `--lr <LR>`
    let long = without_value(&given).to_owned();
    let arg = command.get_arguments().find(|arg| format!("--{}", name(arg)) == long);
    match error.kind() {
        ErrorKind::UnknownArgument if given.starts_with('-') => {
            format!("{PLACE}: {}", unknown(command, &given, "--"))
        }
        ErrorKind::UnknownArgument => format!(
            "{PLACE}: `{given}` belongs to no setting: write the name of the setting before it, as in `--name {given}`"
        ),
        ErrorKind::ArgumentConflict => {
            let other = match error.get(ContextKind::PriorArg) {
                Some(ContextValue::Strings(others)) => others.first().cloned().unwrap_or_default(),
                _ => text(error, ContextKind::PriorArg),
            };
            if other.is_empty() || other == given {
                format!("{PLACE}: `{long}` is given twice: remove one")
            } else {
                format!("`{long}` and `{}` are both set: set only one of them", without_value(&other))
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(missing)) => missing.clone(),
                _ => vec![given],
            };
            let missing: Vec<_> = missing.iter().map(|arg| without_value(arg)).collect();
            let first = missing.first().map_or("", |first| first.trim_start_matches('-'));
            format!(
                "`{}` must be set: add it to the command line, or `{first} = …` to the file",
                missing.join("`, `")
            )
        }
        _ => match arg.and_then(|arg| Some((arg, value_mistake(arg, error)?))) {
            Some((arg, mistake)) => {
                let found = text(error, ContextKind::InvalidValue);
                let number = error.get(ContextKind::ActualNumValues);
                match (found.is_empty(), number) {
                    (true, None) => format!("{PLACE}: `--{}` has no value: {mistake}", name(arg)),
                    (true, Some(number)) => {
                        let plural = if number.to_string() == "1" { "" } else { "s" };
                        format!("{PLACE}: `--{}` has {number} value{plural}: {mistake}", name(arg))
                    }
                    (false, _) => format!("{PLACE}: `--{}` is `{found}`: {mistake}", name(arg)),
                }
            }
            None => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                format!("{PLACE}: {}", first.strip_prefix("error: ").unwrap_or(first))
            }
        },
    }
}

fn text(error: &Error, context: ContextKind) -> String {
    error.get(context).map_or_else(String::new, ToString::to_string)
}

/// Returns an argument without its value: `--lr` for `--lr <LR>`.
fn without_value(arg: &str) -> &str {
    arg.split([' ', '=', '[']).next().unwrap_or_default()
}
