//! What stands in `#[hook(…)]`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ExprUnary, Lit, Path, UnOp};

use crate::errors::Errors;
use crate::keys::{Form, nearest, split_at_commas};

/// The keys, for suggestions.
const KEYS: [&str; 11] =
    ["ord", "only", "every", "before", "after", "around", "main_only", "auto", "single", "state", "crate"];

/// The arguments of one `#[hook(…)]`.
#[derive(Default)]
pub(super) struct Arguments {
    /// The first bare word: the point.
    pub(super) point: Option<Path>,
    /// `around = operation`.
    pub(super) around: Option<Path>,
    /// `ord = <expression of type i32>`.
    pub(super) ord: Option<Expr>,
    /// `only = phase`, `only(phase, …)`: names in `trainer::phase`.
    pub(super) only: Vec<Ident>,
    /// `every = <positive integer>`.
    pub(super) every: Option<(u32, Span)>,
    /// `before = hook`, `before(hook, …)`.
    pub(super) before: Vec<Target>,
    /// `after = hook`, `after(hook, …)`.
    pub(super) after: Vec<Target>,
    /// `main_only`, `auto`, `single`, `state`: the word itself.
    pub(super) main_only: Option<Span>,
    pub(super) auto: Option<Span>,
    pub(super) single: Option<Span>,
    pub(super) state: Option<Span>,
    /// `crate = path`: where the `trainer` crate is.
    pub(super) krate: Option<Path>,
    /// An argument that may have been meant for the point could not be read.
    pub(super) unclear: bool,
    /// Every key as it was written, for editors.
    pub(super) keys: Vec<Ident>,
}

/// A hook that another runs before or after.
pub(super) struct Target {
    /// Of a function or a type.
    pub(super) path: Path,
    /// `optional(…)`: it may be absent.
    pub(super) optional: bool,
}

impl Arguments {
    /// Parses each argument by itself, so that one mistake does not hide the next.
    pub(super) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut arguments = Arguments::default();
        let sound = errors.none_in(|errors| arguments.parse_each(tokens, errors));
        arguments.unclear = !sound && arguments.point.is_none() && arguments.around.is_none();
        arguments
    }

    fn parse_each(&mut self, tokens: TokenStream, errors: &mut Errors) {
        for (index, argument) in split_at_commas(tokens).into_iter().enumerate() {
            let span = argument.span();
            let mut rest = argument.clone().into_iter();
            let first = rest.next();
            let rest: TokenStream = rest.collect();
            match (first, Form::of(&rest)) {
                (None, _) => errors.push(span, "expected an argument before this comma"),
                (Some(TokenTree::Ident(key)), form @ (Form::Value(_) | Form::List(_))) => {
                    self.set(&key, form, errors);
                }
                (Some(TokenTree::Ident(key)), form @ Form::Nothing) if is_flag(&key.to_string()) => {
                    self.set(&key, form, errors);
                }
                _ => match Path::parse_mod_style.parse2(argument) {
                    Ok(path) if index == 0 => self.point = Some(path),
                    Ok(path) => errors.push(
                        path.span(),
                        match path.get_ident().map(ToString::to_string) {
                            Some(word) if KEYS.contains(&&*word) => format!("expected {}", form_of(&word)),
                            _ => format!(
                                "expected `<key> = <value>` with one of {}; only the first argument is a bare point",
                                listed()
                            ),
                        },
                    ),
                    Err(_) => errors.push(
                        span,
                        "expected a point, as in `#[hook(after_step)]`, or `<key> = <value>`, as in `#[hook(ord = 10)]`",
                    ),
                },
            }
        }
    }

    fn set(&mut self, key: &Ident, form: Form, errors: &mut Errors) {
        let (name, span) = (key.to_string(), key.span());
        if self.keys.contains(key) {
            return errors.push(span, format!("`{name}` is given twice"));
        }
        self.keys.push(key.clone());
        match (name.as_str(), form) {
            ("ord", Form::Value(value)) => self.ord = integer("ord", value, span, errors),
            ("every", Form::Value(value)) => self.every = positive(value, span, errors),
            ("only", Form::Value(list) | Form::List(list)) => self.only = phases(list, span, errors),
            ("before", Form::Value(list) | Form::List(list)) => {
                self.before = targets(&name, list, span, errors);
            }
            ("after", Form::Value(list) | Form::List(list)) => {
                self.after = targets(&name, list, span, errors);
            }
            ("around", Form::Value(value)) => self.around = path(&name, value, span, errors),
            ("crate", Form::Value(value)) => self.krate = path(&name, value, span, errors),
            ("main_only", Form::Nothing) => self.main_only = Some(span),
            ("auto", Form::Nothing) => self.auto = Some(span),
            ("single", Form::Nothing) => self.single = Some(span),
            ("state", Form::Nothing) => self.state = Some(span),
            (known, _) if KEYS.contains(&known) => errors.push(span, format!("expected {}", form_of(known))),
            _ => {
                let help = match nearest(&name, KEYS) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!("its keys are {}", listed()),
                };
                errors.push(span, format!("`#[hook]` has no key `{name}`; {help}"));
            }
        }
    }
}

/// A key that stands alone.
fn is_flag(word: &str) -> bool {
    matches!(word, "main_only" | "auto" | "single" | "state")
}

/// How a key is written.
fn form_of(key: &str) -> &'static str {
    match key {
        "ord" => "`ord = <integer>`",
        "every" => "`every = <integer>` of at least 1",
        "only" => "`only = <phase>` or `only(<phase>, …)`",
        "before" => "`before = <hook>`, `before(<hook>, …)` or `before = optional(<hook>)`",
        "after" => "`after = <hook>`, `after(<hook>, …)` or `after = optional(<hook>)`",
        "around" => "`around = <operation>`",
        "crate" => "`crate = <path of the trainer crate>`",
        "main_only" => "`main_only` without a value",
        "auto" => "`auto` without a value",
        "state" => "`state` without a value",
        _ => "`single` without a value",
    }
}

/// Any constant expression; a literal must be an integer that fits into i32.
fn integer(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<Expr> {
    if value.is_empty() {
        errors.push(at, format!("expected {}", form_of(key)));
        return None;
    }
    let expression = errors.keep(syn::parse2::<Expr>(value))?;
    let literal = match &expression {
        Expr::Lit(ExprLit { lit, .. }) => Some((lit, false)),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => match &**expr {
            Expr::Lit(ExprLit { lit, .. }) => Some((lit, true)),
            _ => None,
        },
        _ => None,
    };
    match literal {
        None => Some(expression),
        Some((Lit::Int(digits), negative)) => {
            let sign = if negative { "-" } else { "" };
            if format!("{sign}{}", digits.base10_digits()).parse::<i32>().is_err() {
                let message = format!("`{key}` is an i32: from {} to {}", i32::MIN, i32::MAX);
                errors.push(expression.span(), message);
                return None;
            }
            Some(expression)
        }
        Some((other, _)) => {
            errors.push(expression.span(), format!("expected `{key} = <integer>`, found {}", kind_of(other)));
            None
        }
    }
}

fn positive(value: TokenStream, at: Span, errors: &mut Errors) -> Option<(u32, Span)> {
    let span = if value.is_empty() { at } else { value.span() };
    match syn::parse2::<Lit>(value) {
        Ok(Lit::Int(digits)) => match digits.base10_parse::<u32>() {
            Ok(number) if number > 0 => return Some((number, at)),
            _ => errors.push(span, "expected `every = <integer>` of at least 1"),
        },
        Ok(other) => errors.push(span, format!("expected `every = <integer>`, found {}", kind_of(&other))),
        Err(_) => errors.push(span, "expected `every = <integer>` of at least 1"),
    }
    None
}

fn phases(list: TokenStream, at: Span, errors: &mut Errors) -> Vec<Ident> {
    let span = if list.is_empty() { at } else { list.span() };
    let parser = syn::punctuated::Punctuated::<Ident, syn::Token![,]>::parse_terminated;
    match parser.parse2(list) {
        Ok(names) if !names.is_empty() => names.into_iter().collect(),
        _ => {
            errors.push(span, format!("expected {}", form_of("only")));
            Vec::new()
        }
    }
}

/// The path of an operation or a crate.
fn path(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<Path> {
    let span = if value.is_empty() { at } else { value.span() };
    let parsed = Path::parse_mod_style.parse2(value);
    parsed.map_err(|_| errors.push(span, format!("expected {}", form_of(key)))).ok()
}

/// The paths of hooks, each perhaps `optional(…)`.
fn targets(key: &str, list: TokenStream, at: Span, errors: &mut Errors) -> Vec<Target> {
    let span = if list.is_empty() { at } else { list.span() };
    let parts = split_at_commas(list);
    if parts.is_empty() {
        errors.push(span, format!("expected {}", form_of(key)));
    }
    let target = |part: TokenStream| {
        let span = part.span();
        let tokens: Vec<TokenTree> = part.clone().into_iter().collect();
        let (inner, optional) = match &tokens[..] {
            [TokenTree::Ident(word), TokenTree::Group(group)] if word == "optional" => (group.stream(), true),
            _ => (part, false),
        };
        match syn::parse2::<syn::TypePath>(inner) {
            Ok(written) if written.qself.is_none() => Some(Target { path: written.path, optional }),
            _ => {
                errors.push(
                    span,
                    format!("expected the path of a hook function or hook type: {}", form_of(key)),
                );
                None
            }
        }
    };
    parts.into_iter().filter_map(target).collect()
}

fn kind_of(literal: &Lit) -> &'static str {
    match literal {
        Lit::Str(_) => "a string",
        Lit::Float(_) => "a number with a fraction",
        Lit::Bool(_) => "a boolean",
        Lit::Char(_) => "a character",
        _ => "something else",
    }
}

fn listed() -> String {
    KEYS.map(|key| format!("`{key}`")).join(", ")
}
