//! The names and types of settings, which clap's derive takes from the fields of structs.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command};

use crate::values::hyperparameter::Hyperparameter;

/// The type of a setting. Distinguishes only types whose values differ in files or in records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Float,
    Bool,
    Text,
    /// A type whose values are texts or numbers, such as an interval.
    Other,
}

/// Returns the type of a setting.
pub(super) fn kind(arg: &Arg) -> Kind {
    let id = arg.get_value_parser().type_id();
    macro_rules! is {
        ($($type:ty),*) => { [$(TypeId::of::<$type>()),*].iter().any(|of| id == *of) };
    }
    match () {
        () if is!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize) => Kind::Integer,
        () if is!(f32, f64) => Kind::Float,
        () if is!(bool) => Kind::Bool,
        () if is!(String, OsString, PathBuf, char) => Kind::Text,
        () => Kind::Other,
    }
}

/// Returns the name of a setting. Every setting has a name, because [`named`] rejects settings
/// without one.
pub(super) fn name(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

/// Whether a setting takes several values.
pub(super) fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || takes_several(arg)
}

/// Whether a setting takes several values at once, as in `--betas 0.9 0.99`.
pub(super) fn takes_several(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|values| values.max_values() > 1)
}

/// Assigns each setting of a struct the single name that is used everywhere: the name of its field,
/// or the name in `long`, with `_` between words.
///
/// # Errors
///
/// Returns an error if a field cannot be a setting.
pub(super) fn named(owner: &str, command: Command) -> Result<Command, String> {
    if command.has_subcommands() {
        return Err(format!(
            "`{owner}` has subcommands, which a file of settings cannot choose: parse them first, and pass the remaining \
             arguments to `SettingsParser::parse_from`"
        ));
    }
    for arg in command.get_arguments() {
        let id = arg.get_id();
        let help = match arg.get_action() {
            _ if arg.get_long().is_none() => "has no name on the command line: add `#[arg(long)]`",
            ArgAction::Count => "counts how often it is given: use a number",
            ArgAction::SetFalse => "is a flag that sets `false`: use a flag that sets `true`",
            _ => continue,
        };
        return Err(format!("the field `{id}` of `{owner}` {help}"));
    }
    Ok(command.mut_args(with_name))
}

fn with_name(mut arg: Arg) -> Arg {
    let long = name(&arg).to_owned();
    if long.contains('-') {
        arg = arg.long(long.replace('-', "_")).alias(long);
    }
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    if is_flag {
        arg = arg.action(ArgAction::Set).default_value("false");
    }
    if !arg.is_required_set() && arg.get_default_values().is_empty() {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        if !help.contains("[default:") {
            arg = arg.help(format!("{help} [default: none]").trim_start().to_owned());
        }
    }
    match kind(&arg) {
        // A file can set the flag to `true`, so the command line must be able to set it to `false`.
        Kind::Bool if !is_list(&arg) => {
            let arg = arg.num_args(0..=1).default_missing_value("true").hide_possible_values(true);
            if is_flag { arg.value_name("BOOL") } else { arg }
        }
        Kind::Integer | Kind::Float => arg.allow_negative_numbers(true),
        _ => arg,
    }
}

/// Returns a message about the first name in the program's settings that is already taken, if there
/// is such a name. A name can be taken by another setting or struct of settings of the program, by
/// the trainer, or by `--help` or `--config`.
pub(super) fn clash(owner: &str, own: &Command, of_trainer: &Command) -> Option<String> {
    let mut known: Vec<&str> = Vec::new();
    for arg in own.get_arguments() {
        let name = name(arg);
        let has = |short| own.get_arguments().filter(|other| other.get_short() == Some(short)).count();
        if let Some(short) = arg.get_short()
            && (short == 'h' || has(short) > 1)
        {
            let other = if short == 'h' { "`--help`" } else { "another field" };
            return Some(format!(
                "the field `{name}` of `{owner}` and {other} have the short name `-{short}`: remove it from one of them"
            ));
        }
        if name == "help" || name == super::CONFIG {
            return Some(format!(
                "the field `{name}` of `{owner}` has the same name as `--{name}`, an argument that every program has: rename the field"
            ));
        }
        let is_of_trainer = |other: &Arg| self::name(other) == name || other.get_id() == arg.get_id();
        if of_trainer.get_arguments().any(is_of_trainer) {
            return Some(format!(
                "the setting `{name}` exists twice: as a field of `{owner}`, and as a field of `trainer::cli::TrainerArgs`: \
                 remove the field of `{owner}`, because `parse` returns the `TrainerArgs` too, or rename it"
            ));
        }
        if known.contains(&name) {
            return Some(format!(
                "the setting `{name}` exists twice in `{owner}`, whose structs have two fields of this name: rename one of \
                 them, or write `#[arg(id = \"encoder.{name}\", long)]` for the field of the struct `encoder`"
            ));
        }
        known.push(name);
    }
    let group_of_trainer = of_trainer.get_groups().map(clap::ArgGroup::get_id);
    let groups: Vec<_> = own.get_groups().map(clap::ArgGroup::get_id).chain(group_of_trainer).collect();
    let twice = groups.iter().enumerate().find(|(nth, group)| groups[..*nth].contains(group));
    twice.map(|(_, group)| {
        format!(
            "two structs of settings have the name `{group}`: rename one of them, or add `#[group(skip)]` to it"
        )
    })
}

/// Converts the values of a setting, given as text, to the hyperparameter that is recorded.
pub(super) fn hyperparameter(arg: &Arg, texts: &[String]) -> Hyperparameter {
    let one = match texts {
        [one] if !is_list(arg) => one,
        list => return format!("[{}]", list.join(", ")).into(),
    };
    match kind(arg) {
        Kind::Bool => one.parse::<bool>().map_or_else(|_| one.as_str().into(), Hyperparameter::from),
        Kind::Integer | Kind::Float => match (one.parse::<f64>(), one.parse::<i128>()) {
            // An integer that `f64` cannot represent exactly is recorded as text.
            (Ok(number), Ok(exact)) if number as i128 != exact => one.as_str().into(),
            (Ok(number), _) => number.into(),
            (Err(_), _) => one.as_str().into(),
        },
        Kind::Text | Kind::Other => one.as_str().into(),
    }
}
