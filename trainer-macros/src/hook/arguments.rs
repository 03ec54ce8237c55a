//! The arguments of `#[hook(…)]`: the valid keys, and messages about invalid ones.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Expr, ExprPath, Path};

use super::foreign;
use super::values::{
    AutoIf, Of, Only, SavedState, Target, auto_if, boolean, condition, integer, modules, only, path,
    positive, saved_field, second_argument, sets, targets, text_of,
};
use super::words::{
    AROUND, FLAGS, KEYS, LATER, MOMENT, OF_VALUE, PHASES, form_of, is_flag, is_like_a_point, is_main_only,
    is_nearly_a_key, is_point_marker, known_marker, listed, marker_meant, meant,
};
use crate::errors::Errors;
use crate::keys::{Form, split_at_commas};
use crate::moments::{is_marker, is_nearly_a_point, is_operation, is_point};
use crate::phases::{self, PHASES as PHASE_NAMES};

/// The arguments of one `#[hook(…)]`.
#[derive(Default)]
pub(super) struct Arguments {
    /// `ord = <expression of type i32>`.
    pub(super) ord: Option<Expr>,
    /// `only = phase`, `only(phase, …)`, `only = self.phases`.
    pub(super) only: Option<Only>,
    /// The expression in `every = <expression>`, where `self` is the hook's value, and the span of
    /// the key.
    pub(super) every: Option<(Expr, Span)>,
    /// `when = path`: a function of the context.
    pub(super) when: Option<ExprPath>,
    /// `of = "encoder.*"`, `of("a", optional("b"))`, `of = self.patterns`: the modules to run at.
    pub(super) of: Option<Of>,
    /// `in = set`, `in(set, …)`.
    pub(super) sets: Vec<Path>,
    /// `before = hook`, `before(hook, …)`.
    pub(super) before: Vec<Target>,
    /// `after = hook`, `after(hook, …)`.
    pub(super) after: Vec<Target>,
    /// The span of the flag `auto`.
    pub(super) auto: Option<Span>,
    /// The value of `auto`, if it has one.
    pub(super) auto_if: Option<AutoIf>,
    /// The span of the key `single`.
    pub(super) single: Option<Span>,
    /// The value of `single`, if it has one: another type.
    pub(super) single_of: Option<Path>,
    /// `state`, `state = self.<field>`.
    pub(super) state: Option<SavedState>,
    /// The span of the flag `settings`.
    pub(super) settings: Option<Span>,
    /// The span of the flag `variables`.
    pub(super) variables: Option<Span>,
    /// The span of the flag `observes`.
    pub(super) observes: Option<Span>,
    /// The span of the flag `writes`.
    pub(super) writes: Option<Span>,
    /// The span of the flag `may_fail`.
    pub(super) may_fail: Option<Span>,
    /// The span of the flag `more`.
    pub(super) more: Option<Span>,
    /// `trial`, `trial = false`.
    pub(super) trial: Option<bool>,
    /// `crate = path`: the path of the `trainer` crate.
    pub(super) krate: Option<Path>,
    /// Words that belong in the signature, as types, rather than in the arguments.
    pub(super) moved: Vec<(Span, Moved)>,
    /// Every key that was given, to detect duplicates.
    keys: Vec<Ident>,
    /// Every word that is, or may be completed to, a name. Editors suggest names from the module of
    /// `trainer` that is listed with the word.
    pub(super) words: Vec<(&'static [&'static str], Ident)>,
}

/// A word that belongs in the signature of a hook, as a type, rather than in the arguments.
pub(super) enum Moved {
    /// The point of a hook, as written, and the name of its marker type if that is known.
    Point(String, Option<String>),
    /// The operation that a hook runs around, as written, and its marker type if that is known.
    Around(String, Option<String>),
    /// `main_only`, or a similar word.
    MainOnly(String),
}

/// The item that an attribute is on.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum On {
    Function,
    Method,
    Block,
}

/// A key whose value is one element of what the user probably means as a list, and the list so far.
struct List {
    key: &'static str,
    elements: Vec<String>,
}

impl List {
    /// Returns the list that an argument begins, if it has the form `of = "a"`.
    fn begun_by(argument: &TokenStream) -> Option<List> {
        let mut tokens = argument.clone().into_iter();
        let word = tokens.next()?.to_string();
        let key = ["of", "only", "in", "before", "after"].into_iter().find(|key| *key == word)?;
        let Form::Value(value) = Form::of(&tokens.collect()) else { return None };
        Some(List { key, elements: vec![text_of(&value)] })
    }

    /// Returns whether an argument is a further element: `"b"` in `of = "a", "b"`. A word that may
    /// be a key, a flag, a phase or a moment is none.
    fn continues_with(&self, argument: &TokenStream) -> bool {
        let text = argument.to_string();
        match self.key {
            "of" => text.starts_with('"') || text.starts_with("optional"),
            "only" => PHASE_NAMES.contains(&&*text),
            _ if text.starts_with("optional") => true,
            _ => match Path::parse_mod_style.parse2(argument.clone()) {
                Ok(path) => path.get_ident().is_none_or(|word| {
                    let word = word.to_string();
                    !is_nearly_a_key(&word)
                        && !is_main_only(&word)
                        && phases::meant(&word).is_none()
                        && !is_moment(&word)
                        && !is_like_a_point(&word)
                }),
                Err(_) => false,
            },
        }
    }

    /// Returns the list as the user should write it: `of("a", "b")`.
    fn written(&self) -> String {
        format!("{}({})", self.key, self.elements.join(", "))
    }
}

/// Returns whether a word is the name of a moment of the trainer, or of its marker type.
fn is_moment(word: &str) -> bool {
    is_point(word) || is_marker(word) || is_operation(word)
}

fn text_in_quotes(literal: &proc_macro2::Literal) -> String {
    literal.to_string().trim_matches('"').to_owned()
}

impl Arguments {
    /// Parses each argument separately, so that one mistake does not hide the next.
    pub(super) fn parse(tokens: TokenStream, on: On, errors: &mut Errors) -> Self {
        let mut arguments = Arguments::default();
        let mut rest = split_at_commas(tokens).into_iter().peekable();
        while let Some(argument) = rest.next() {
            let list = List::begun_by(&argument);
            arguments.parse_one(argument, on, errors);
            let Some(mut list) = list else { continue };
            let mut further = None;
            while let Some(element) = rest.next_if(|next| list.continues_with(next)) {
                further.get_or_insert_with(|| element.span());
                list.elements.push(text_of(&element));
            }
            if let Some(second) = further {
                errors.push(
                    second,
                    format!("several values of one key are a list: write `{}`", list.written()),
                );
            }
        }
        arguments
    }

    /// Returns the paths of hooks, sets and functions in the values of keys, except paths with
    /// generic arguments.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let targets = self.before.iter().chain(&self.after).map(|target| &target.path);
        let when = self.when.iter().filter(|when| when.qself.is_none()).map(|when| &when.path);
        let paths = targets.chain(&self.sets).chain(when);
        paths.filter(|path| path.segments.iter().all(|segment| segment.arguments.is_empty()))
    }

    fn parse_one(&mut self, argument: TokenStream, on: On, errors: &mut Errors) {
        let is_semicolon =
            |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';');
        if let Some(semicolon) = argument.clone().into_iter().find(is_semicolon) {
            return errors.push(semicolon.span(), "expected a comma between two keys, found `;`");
        }
        let span = argument.span();
        let text = argument.to_string();
        let is_string = text.starts_with('"');
        let marker = known_marker(text.trim_matches('"'));
        let mut rest = argument.clone().into_iter();
        let first = rest.next();
        let rest: TokenStream = rest.collect();
        match (first, Form::of(&rest)) {
            (Some(TokenTree::Literal(quoted)), Form::Value(_) | Form::List(_)) if is_string => {
                let key = text_in_quotes(&quoted);
                errors.push(quoted.span(), format!("a key is written without quotes: `{key} = …`"));
            }
            (None, _) => errors.push(span, "expected an argument before this comma"),
            (Some(TokenTree::Ident(key)), form @ (Form::Value(_) | Form::List(_))) => {
                if !self.moved_key(&key, &form) {
                    self.set(&key, form, on, errors);
                }
            }
            (Some(TokenTree::Ident(key)), form @ Form::Nothing) if is_flag(&key.to_string()) => {
                self.set(&key, form, on, errors);
            }
            (Some(TokenTree::Ident(first)), Form::Other) if second_argument(&rest, true).is_some() => {
                let second = second_argument(&rest, true).unwrap_or(first);
                errors.push(second.span(), format!("expected a comma before `{second}`"));
            }
            (Some(TokenTree::Ident(key)), Form::Other) if colon(&rest).is_some() => {
                let at = colon(&rest).unwrap_or(span);
                errors.push(at, format!("expected `=`: write `{key} = …`"));
            }
            _ => match Path::parse_mod_style.parse2(argument) {
                Ok(path) => self.word(&path, on, errors),
                Err(_) if is_string => self.moved.push((span, Moved::Point(text, marker))),
                Err(_) => errors.push(
                    span,
                    "expected a key, as in `#[hook(auto)]`, or `<key> = <value>`, as in `#[hook(ord = 10)]`",
                ),
            },
        }
    }

    /// Notes a key that belongs in the signature, as a type, such as `around = backward`. Returns
    /// whether `key` is such a key.
    fn moved_key(&mut self, key: &Ident, form: &Form) -> bool {
        let name = key.to_string();
        if KEYS.contains(&&*name) {
            return false;
        }
        let (Form::Value(value) | Form::List(value)) = form else { return false };
        let moment = Path::parse_mod_style.parse2(value.clone()).ok();
        let text = moment.as_ref().map_or_else(|| "…".into(), text_of);
        let marker = moment.as_ref().and_then(marker_meant);
        let moved = match &*name {
            around if AROUND.contains(&around) => {
                let marker = marker.filter(|marker| !is_point_marker(marker));
                Moved::Around(format!("{name} = {text}"), marker)
            }
            word if MOMENT.contains(&word) => Moved::Point(format!("{name} = {text}"), marker),
            main if is_main_only(main) => Moved::MainOnly(name),
            point if is_nearly_a_point(point) => Moved::Point(name.clone(), known_marker(&name)),
            _ => return false,
        };
        self.moved.push((key.span(), moved));
        true
    }

    /// Reports a word that is not a key. The name of a moment is only noted, because it belongs in
    /// the signature, as a type.
    fn word(&mut self, path: &Path, on: On, errors: &mut Errors) {
        let Some(word) = path.get_ident() else {
            let span = path.segments.last().map_or_else(|| path.span(), |last| last.ident.span());
            self.moved.push((span, Moved::Point(text_of(path), marker_meant(path))));
            return;
        };
        self.words.push((LATER, word.clone()));
        let name = word.to_string();
        let help = match &*name {
            key if KEYS.contains(&key) => format!("expected {}", form_of(key)),
            // Before the moments, because `valid`, `test` and `predict` are operations, too.
            phase if phases::meant(phase).is_some() => {
                let phase = phases::meant(phase).unwrap_or_default();
                format!("a phase is a value of the key `only`: write `only = {phase}`")
            }
            main if is_main_only(main) => {
                return self.moved.push((word.span(), Moved::MainOnly(name)));
            }
            moment if is_moment(moment) => {
                let marker = marker_meant(path);
                return self.moved.push((word.span(), Moved::Point(name, marker)));
            }
            _ => match foreign::translate(&name) {
                Some(ours) => ours.message(&name),
                None if meant(&name, &FLAGS).is_none() && is_like_a_point(&name) => {
                    return self.moved.push((word.span(), Moved::Point(name, None)));
                }
                None if meant(&name, &KEYS).is_none() && name.starts_with(char::is_uppercase) => {
                    format!("`#[hook]` has no key `{name}`; to add the hook to a set, write `in = <set>`")
                }
                None => unknown(&name, true, on),
            },
        };
        errors.push(word.span(), help);
    }

    fn set(&mut self, key: &Ident, form: Form, on: On, errors: &mut Errors) {
        let name = key.to_string();
        let span = key.span();
        if self.keys.contains(key) {
            let help = match name.as_str() {
                "of" => ": write `of(\"encoder.*\", \"head\")`",
                "only" => ": list all phases together",
                "before" | "after" => ": list all hooks together",
                "in" => ": list all sets together",
                _ => "",
            };
            return errors.push(span, format!("duplicate key `{name}`{help}"));
        }
        self.keys.push(key.clone());
        let completed = if name == "in" { Ident::new_raw("in", span) } else { key.clone() };
        self.words.extend((key != "crate").then_some((LATER, completed)));
        if let Form::Value(value) = &form
            && let Some(TokenTree::Punct(second)) = value.clone().into_iter().next()
            && second.as_char() == '='
        {
            return errors.push(second.span(), format!("expected one `=`: write `{name} = …`"));
        }
        match (name.as_str(), form) {
            ("ord", Form::Value(value)) => self.ord = integer("ord", value, span, errors),
            ("every", Form::Value(value)) => self.every = positive(value, span, errors),
            ("when", Form::Value(value)) => self.when = condition(value, span, errors),
            ("only", Form::Value(list) | Form::List(list)) => {
                self.words.extend(placeholder(&list, "train").map(|phase| (PHASES, phase)));
                self.only = only(list, span, &mut self.words, errors);
            }
            ("of", Form::Value(list) | Form::List(list)) => self.of = modules(list, span, errors),
            ("in", Form::Value(list) | Form::List(list)) => self.sets = sets(list, span, errors),
            ("before", Form::Value(list) | Form::List(list)) => {
                self.before = targets(&name, list, span, errors);
            }
            ("after", Form::Value(list) | Form::List(list)) => {
                self.after = targets(&name, list, span, errors);
            }
            ("crate", Form::Value(value)) => self.krate = path(&name, value, span, errors),
            ("auto", Form::Nothing) => self.auto = Some(span),
            ("auto", Form::Value(value)) => {
                self.auto_if = auto_if(value, span, errors);
                self.auto = self.auto_if.is_some().then_some(span);
            }
            ("single", Form::Nothing) => self.single = Some(span),
            ("single", Form::Value(value)) => {
                self.single_of = path(&name, value, span, errors);
                self.single = self.single_of.is_some().then_some(span);
            }
            ("state", Form::Nothing) => self.state = Some(SavedState { span, field: None }),
            ("state", Form::Value(value)) => self.state = saved_field(value, span, errors),
            ("settings", Form::Nothing) => self.settings = Some(span),
            ("variables", Form::Nothing) => self.variables = Some(span),
            ("observes", Form::Nothing) => self.observes = Some(span),
            ("writes", Form::Nothing) => self.writes = Some(span),
            ("may_fail", Form::Nothing) => self.may_fail = Some(span),
            ("more", Form::Nothing) => self.more = Some(span),
            ("trial", Form::Nothing) => self.trial = Some(true),
            ("trial", Form::Value(value)) => self.trial = boolean("trial", value, span, errors),
            (known, _) if KEYS.contains(&known) => {
                errors.push(span, format!("expected {}", form_of(known)));
            }
            (_, Form::Value(value)) if is_true(&value) && phases::meant(&name).is_some() => {
                let phase = phases::meant(&name).unwrap_or_default();
                errors.push(span, format!("a phase is a value of the key `only`: write `only = {phase}`"));
            }
            _ => errors.push(span, unknown(&name, false, on)),
        }
    }
}

/// Returns whether a value is `true`.
fn is_true(value: &TokenStream) -> bool {
    value.to_string() == "true"
}

/// Returns the message about a key that does not exist. `is_bare` says whether it has no value.
fn unknown(name: &str, is_bare: bool, on: On) -> String {
    let flag = if is_bare { meant(name, &FLAGS) } else { None };
    let help = match flag.or_else(|| meant(name, &KEYS)) {
        Some(key) if on != On::Block && OF_VALUE.contains(&key) => {
            format!(
                "the similar key `{key}` goes on an `impl` block, where it applies to the value of the hook"
            )
        }
        Some(flag) if !is_bare || is_flag(flag) => format!("did you mean `{flag}`?"),
        Some(key) => format!("did you mean {}?", form_of(key)),
        None => format!("expected one of {}", listed()),
    };
    format!("`#[hook]` has no key `{name}`; {help}")
}

/// Returns `name` as a placeholder if there is no value yet, because editors only complete words
/// that exist. Returns `None` if there is a value.
fn placeholder(value: &TokenStream, name: &str) -> Option<Ident> {
    value.is_empty().then(|| Ident::new(name, Span::call_site()))
}

/// Returns the span of the `:` in `ord: 10`.
fn colon(rest: &TokenStream) -> Option<Span> {
    let mut tokens = rest.clone().into_iter();
    match (tokens.next()?, tokens.next()?) {
        (TokenTree::Punct(colon), second) if colon.as_char() == ':' && second.to_string() != ":" => {
            Some(colon.span())
        }
        _ => None,
    }
}
