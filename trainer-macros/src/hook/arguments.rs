//! What stands in `#[hook(…)]`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ExprUnary, Lit, Path, UnOp};

use crate::errors::Errors;

/// The keys, for suggestions.
const KEYS: [&str; 3] = ["ord", "only", "every"];

/// The arguments of one `#[hook(…)]`.
#[derive(Default)]
pub(super) struct Arguments {
    /// The first bare word: the point.
    pub(super) point: Option<Path>,
    /// `ord = <expression of type i32>`.
    pub(super) ord: Option<Expr>,
    /// `only = phase`, `only(phase, …)`: names in `trainer::phase`.
    pub(super) only: Vec<Ident>,
    /// `every = <positive integer>`.
    pub(super) every: Option<(u32, Span)>,
}

impl Arguments {
    /// Parses each argument by itself, so that one mistake does not hide the next.
    pub(super) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut arguments = Arguments::default();
        let mut seen = Vec::<String>::new();
        for (index, argument) in split_at_commas(tokens).into_iter().enumerate() {
            let span = argument.span();
            let mut rest = argument.clone().into_iter();
            let first = rest.next();
            let rest: TokenStream = rest.collect();
            match (first, Form::of(&rest)) {
                (None, _) => errors.push(span, "expected an argument before this comma"),
                (Some(TokenTree::Ident(key)), Form::Value(value)) => {
                    arguments.set(&key, Form::Value(value), &mut seen, errors);
                }
                (Some(TokenTree::Ident(key)), Form::List(list)) => {
                    arguments.set(&key, Form::List(list), &mut seen, errors);
                }
                _ => match Path::parse_mod_style.parse2(argument) {
                    Ok(path) if index == 0 => arguments.point = Some(path),
                    Ok(path) => errors.push(
                        path.span(),
                        format!(
                            "expected `<key> = <value>` with one of {}; only the first argument is a bare point",
                            listed()
                        ),
                    ),
                    Err(_) => errors.push(
                        span,
                        "expected a point, as in `#[hook(after_step)]`, or `<key> = <value>`, as in `#[hook(ord = 10)]`",
                    ),
                },
            }
        }
        arguments
    }

    fn set(&mut self, key: &Ident, form: Form, seen: &mut Vec<String>, errors: &mut Errors) {
        let name = key.to_string();
        if seen.contains(&name) {
            return errors.push(key.span(), format!("`{name}` is given twice"));
        }
        match (name.as_str(), form) {
            ("ord", Form::Value(value)) => self.ord = integer("ord", value, key.span(), errors),
            ("every", Form::Value(value)) => self.every = positive(value, key.span(), errors),
            ("only", Form::Value(list) | Form::List(list)) => self.only = phases(list, key.span(), errors),
            ("ord" | "every", Form::List(_)) => {
                errors.push(key.span(), format!("expected `{name} = <integer>`"));
            }
            _ => {
                let nearest = nearest(&name, KEYS);
                let help = nearest.map_or_else(listed, |nearest| format!("`{nearest}`"));
                errors.push(key.span(), format!("`#[hook]` has no key `{name}`; did you mean {help}?"));
            }
        }
        seen.push(name);
    }
}

/// What follows the first word of an argument.
enum Form {
    /// `= …`
    Value(TokenStream),
    /// `( … )`
    List(TokenStream),
    Neither,
}

impl Form {
    fn of(rest: &TokenStream) -> Form {
        let mut tokens = rest.clone().into_iter();
        match tokens.next() {
            Some(TokenTree::Punct(punct)) if punct.as_char() == '=' => Form::Value(tokens.collect()),
            Some(TokenTree::Group(group)) if tokens.next().is_none() => Form::List(group.stream()),
            _ => Form::Neither,
        }
    }
}

fn split_at_commas(tokens: TokenStream) -> Vec<TokenStream> {
    let (mut parts, mut part) = (Vec::new(), Vec::new());
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ',' => {
                if part.is_empty() {
                    part.push(TokenTree::Punct(punct));
                }
                parts.push(part.drain(..).collect());
            }
            token => part.push(token),
        }
    }
    if !part.is_empty() {
        parts.push(part.into_iter().collect());
    }
    parts
}

/// Any constant expression; a literal must be an integer that fits into i32.
fn integer(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<Expr> {
    if value.is_empty() {
        errors.push(at, format!("expected `{key} = <integer>`"));
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
            errors.push(span, "expected `only = <phase>` or `only(<phase>, …)`");
            Vec::new()
        }
    }
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

/// The most similar of the candidates, if it is similar at all.
fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|it| (strsim::jaro_winkler(name, it), it));
    scored.filter(|(score, _)| *score > 0.7).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, it)| it)
}
