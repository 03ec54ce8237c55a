//! The values of the keys of `#[hook(…)]`, and how each is parsed.

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{
    Expr, ExprField, ExprLit, ExprPath, ExprUnary, Lit, LitBool, LitInt, LitStr, Member, Path, TypePath, UnOp,
};

use super::words::{KEYS, PHASES, form_of, is_flag};
use crate::errors::Errors;
use crate::keys::split_at_commas;

/// The value of the key `auto`.
pub(super) enum AutoIf {
    /// `auto = ranks`.
    Ranks,
    /// `auto = path`: a function without arguments.
    Path(Path),
}

/// The value of the key `only`.
pub(super) enum Only {
    /// Names of phases in `trainer::phase`.
    Phases(Vec<Ident>),
    /// An expression that reads the hook's value: `self.phases`.
    Value(Box<Expr>),
}

/// Returns whether an expression reads the hook's value: `self.every`.
pub(super) fn is_of_value(expression: &Expr) -> bool {
    begins_with_self(&expression.to_token_stream())
}

pub(super) fn begins_with_self(tokens: &TokenStream) -> bool {
    let mut tokens = tokens.clone().into_iter();
    match tokens.next() {
        // The path `self::name` does not count.
        Some(TokenTree::Ident(word)) => {
            word == "self" && tokens.next().is_none_or(|next| next.to_string() != ":")
        }
        Some(TokenTree::Group(group)) if group.delimiter() != Delimiter::Brace => {
            begins_with_self(&group.stream())
        }
        _ => false,
    }
}

/// Returns the first word of an expression, even within parentheses or a macro's invisible group.
pub(super) fn first_word(tokens: &TokenStream) -> Option<Ident> {
    match tokens.clone().into_iter().next()? {
        TokenTree::Ident(word) => Some(word),
        TokenTree::Group(group) if group.delimiter() != Delimiter::Brace => first_word(&group.stream()),
        _ => None,
    }
}

/// The value of the key `of`.
pub(super) enum Of {
    /// Patterns of module names, and whether each is optional.
    Patterns(Vec<(LitStr, bool)>),
    /// An expression that reads the hook's value: `self.patterns`.
    Value(Box<Expr>),
}

impl Of {
    /// Returns the span at which mistakes in this value are reported.
    pub(super) fn span(&self) -> Span {
        match self {
            Of::Patterns(patterns) => patterns.first().map_or_else(Span::call_site, |(text, _)| text.span()),
            Of::Value(value) => value.span(),
        }
    }
}

/// The value of the key `state`.
pub(super) struct SavedState {
    /// The span of the key.
    pub(super) span: Span,
    /// The field that is saved, or `None` if the type itself has a state.
    pub(super) field: Option<Member>,
}

/// A target of `before` or `after`.
pub(super) struct Target {
    /// The path of a hook function or hook type.
    pub(super) path: Path,
    /// Whether it was written as `optional(…)`: the target may then be absent.
    pub(super) optional: bool,
}

/// Returns the parts of a list. Reports an error if the list is empty.
pub(super) fn parts(key: &str, list: TokenStream, at: Span, errors: &mut Errors) -> Vec<TokenStream> {
    let span = if list.is_empty() { at } else { list.span() };
    let parts = split_at_commas(list);
    if parts.is_empty() {
        errors.push(span, format!("expected {}", form_of(key)));
    }
    parts
}

/// For `optional(…)`, returns the tokens in the parentheses, and `true`. Otherwise, returns the
/// tokens unchanged, and `false`.
pub(super) fn optional(part: TokenStream) -> (TokenStream, bool) {
    let tokens: Vec<TokenTree> = part.clone().into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "optional" => (group.stream(), true),
        _ => (part, false),
    }
}

/// Reports a missing comma before a second argument, and returns `None` in that case.
pub(super) fn check_single(argument: &TokenStream, errors: &mut Errors) -> Option<()> {
    let Some(second) = second_argument(argument, false) else { return Some(()) };
    errors.push(second.span(), format!("expected a comma before `{second}`"));
    None
}

/// Returns the key of a second argument if the comma before it is missing. Only a word that follows
/// a value can be such a key.
pub(super) fn second_argument(rest: &TokenStream, mut follows_a_value: bool) -> Option<Ident> {
    let mut tokens = rest.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        let follows = std::mem::replace(&mut follows_a_value, !matches!(token, TokenTree::Punct(_)));
        let TokenTree::Ident(word) = token else { continue };
        if !follows {
            continue; // the field in `state = self.state`, the function in `every = of(2)`
        }
        let key = word.to_string();
        let is_key = match tokens.peek() {
            Some(TokenTree::Punct(punct)) => punct.as_char() == '=' && KEYS.contains(&&*key),
            Some(TokenTree::Group(_)) => KEYS.contains(&&*key),
            Some(_) => false,
            None => is_flag(&key),
        };
        if is_key {
            return Some(word);
        }
    }
    None
}

/// Parses a constant expression. A literal must be an integer that fits into `i32`.
pub(super) fn integer(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<Expr> {
    if value.is_empty() {
        errors.push(at, format!("expected {}", form_of(key)));
        return None;
    }
    check_single(&value, errors)?;
    if begins_with_self(&value) {
        errors.push(
            value.span(),
            format!("`{key}` must be a constant, because it is the same for all values of the type: write a number, or the path of a `const`"),
        );
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
                let message = format!(
                    "`{key}` is out of range for an `i32`: expected an integer from {} to {}",
                    i32::MIN,
                    i32::MAX
                );
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

/// Parses the condition of `auto`.
pub(super) fn auto_if(value: TokenStream, at: Span, errors: &mut Errors) -> Option<AutoIf> {
    check_single(&value, errors)?;
    let span = value.span();
    let path = path("auto", value, at, errors)?;
    if path
        .get_ident()
        .is_some_and(|word| word != "ranks" && strsim::damerau_levenshtein(&word.to_string(), "ranks") <= 2)
    {
        errors.push(span, format!("expected {}", form_of("auto")));
        return None;
    }
    Some(if path.is_ident("ranks") { AutoIf::Ranks } else { AutoIf::Path(path) })
}

/// Parses `true` or `false`.
pub(super) fn boolean(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<bool> {
    let span = if value.is_empty() { at } else { value.span() };
    check_single(&value, errors)?;
    match syn::parse2::<LitBool>(value) {
        Ok(value) => Some(value.value),
        Err(_) => {
            errors.push(span, format!("expected {}", form_of(key)));
            None
        }
    }
}

/// Parses a constant expression, or one that begins with `self`. A literal must be a positive
/// integer.
pub(super) fn positive(value: TokenStream, at: Span, errors: &mut Errors) -> Option<(Expr, Span)> {
    let span = if value.is_empty() { at } else { value.span() };
    check_single(&value, errors)?;
    let value = by_value(value, "every", errors)?;
    const UNITS: [&str; 10] = [
        "batch",
        "batches",
        "step",
        "steps",
        "epoch",
        "epochs",
        "record",
        "records",
        "iteration",
        "iterations",
    ];
    if UNITS.contains(&&*value.to_string()) {
        errors.push(
            span,
            "expected a number: the moment of the hook decides whether `every` counts batches, optimizer steps, epochs or records",
        );
        return None;
    }
    if let [TokenTree::Literal(_), TokenTree::Ident(unit)] =
        &value.clone().into_iter().collect::<Vec<_>>()[..]
    {
        errors.push(
            unit.span(),
            format!("remove `{unit}`: `every` counts the batches, optimizer steps, epochs or records of the hook's moment"),
        );
        return None;
    }
    let is_negative = value.to_string().starts_with('-');
    let message = match syn::parse2::<Expr>(value) {
        Ok(Expr::Lit(ExprLit { lit: Lit::Int(digits), .. }))
            if digits.base10_parse::<u64>().is_ok_and(|n| n == 0) =>
        {
            "expected `every = <integer>` of at least 1".into()
        }
        Ok(Expr::Lit(ExprLit { lit: Lit::Int(digits), .. })) if digits.base10_parse::<u64>().is_err() => {
            format!("`every` is out of range for a `u64`: expected an integer from 1 to {}", u64::MAX)
        }
        Ok(Expr::Lit(ExprLit { lit, .. })) if !matches!(lit, Lit::Int(_)) => {
            format!("expected `every = <integer>`, found {}", kind_of(&lit))
        }
        Ok(Expr::Lit(ExprLit { lit: Lit::Int(digits), attrs })) if digits.suffix().is_empty() => {
            let literal = LitInt::new(&format!("{}u64", digits.base10_digits()), digits.span());
            return Some((Expr::Lit(ExprLit { lit: Lit::Int(literal), attrs }), at));
        }
        Ok(_) if is_negative => "expected `every = <integer>` of at least 1".into(),
        Ok(expression) => return Some((expression, at)),
        Err(_) => format!("expected {}", form_of("every")),
    };
    errors.push(span, message);
    None
}

/// Reports a field that is passed by reference, `&self.field`, and returns `None` in that case.
pub(super) fn by_value(value: TokenStream, key: &str, errors: &mut Errors) -> Option<TokenStream> {
    let mut tokens = value.clone().into_iter();
    let first = tokens.next();
    let rest: TokenStream = tokens.collect();
    match first {
        Some(TokenTree::Punct(reference)) if reference.as_char() == '&' && begins_with_self(&rest) => {
            let field = rest.to_string().replace(' ', "");
            errors.push(reference.span(), format!("write `{key} = {field}`, without `&`"));
            None
        }
        _ => Some(value),
    }
}

/// Parses phases, or an expression that begins with `self`.
pub(super) fn only(
    list: TokenStream,
    at: Span,
    words: &mut Vec<(&'static [&'static str], Ident)>,
    errors: &mut Errors,
) -> Option<Only> {
    let list = by_value(list, "only", errors)?;
    if begins_with_self(&list) {
        check_single(&list, errors)?;
        return errors.keep(syn::parse2(list)).map(|value| Only::Value(Box::new(value)));
    }
    let phases = phases(list, at, words, errors);
    (!phases.is_empty()).then_some(Only::Phases(phases))
}

/// Parses each phase separately, so that one mistake does not hide the next.
pub(super) fn phases(
    list: TokenStream,
    at: Span,
    words: &mut Vec<(&'static [&'static str], Ident)>,
    errors: &mut Errors,
) -> Vec<Ident> {
    if check_single(&list, errors).is_none() {
        return Vec::new();
    }
    let mut phases = Vec::new();
    for part in parts("only", list, at, errors) {
        match syn::parse2::<Ident>(part.clone()) {
            Ok(name) if phases.contains(&name) => {
                errors.push(name.span(), format!("duplicate phase `{name}`"));
            }
            Ok(name) => {
                words.push((PHASES, name.clone()));
                phases.extend(crate::phases::check(name, errors));
            }
            Err(_) => {
                if let Some(second) = second_word(&part) {
                    errors.push(second.span(), format!("expected a comma before `{second}`"));
                    continue;
                }
                let phase = last_word(&part).map(|last| last.to_lowercase());
                let phase = phase.filter(|phase| crate::phases::PHASES.contains(&&**phase));
                let help = phase.map_or_else(String::new, |phase| format!(": write `only = {phase}`"));
                errors.push(part.span(), format!("expected {}{help}", form_of("only")));
            }
        }
    }
    phases
}

/// Returns the last word of a path (`Train` in `Phase::Train`), or the text of a string.
pub(super) fn last_word(part: &TokenStream) -> Option<String> {
    if let Ok(text) = syn::parse2::<LitStr>(part.clone()) {
        return Some(text.value());
    }
    let path = Path::parse_mod_style.parse2(part.clone()).ok()?;
    Some(path.segments.last()?.ident.to_string())
}

/// Returns the second of two words without a comma between them.
pub(super) fn second_word(part: &TokenStream) -> Option<Ident> {
    match &part.clone().into_iter().collect::<Vec<_>>()[..] {
        [TokenTree::Ident(_), TokenTree::Ident(second), ..] => Some(second.clone()),
        _ => None,
    }
}

/// Formats a path with the usual spacing.
pub(super) fn text_of(path: &impl ToTokens) -> String {
    path.to_token_stream().to_string().replace(' ', "").replace(',', ", ")
}

/// Parses the path of an operation or a crate.
pub(super) fn path(key: &str, value: TokenStream, at: Span, errors: &mut Errors) -> Option<Path> {
    let span = if value.is_empty() { at } else { value.span() };
    let parsed = Path::parse_mod_style.parse2(value);
    parsed.map_err(|_| errors.push(span, format!("expected {}", form_of(key)))).ok()
}

/// Parses the path of a condition, which may have generic arguments.
pub(super) fn condition(value: TokenStream, at: Span, errors: &mut Errors) -> Option<ExprPath> {
    let span = if value.is_empty() { at } else { value.span() };
    check_single(&value, errors)?;
    let parsed = syn::parse2::<ExprPath>(value);
    parsed.map_err(|_| errors.push(span, format!("expected {}", form_of("when")))).ok()
}

/// Parses patterns of module names, each of which may be `optional(…)`, or an expression that
/// begins with `self`.
pub(super) fn modules(list: TokenStream, at: Span, errors: &mut Errors) -> Option<Of> {
    check_single(&list, errors)?;
    let list = by_value(list, "of", errors)?;
    if begins_with_self(&list) {
        return errors.keep(syn::parse2(list)).map(|value| Of::Value(Box::new(value)));
    }
    let mut patterns = Vec::new();
    for part in parts("of", list, at, errors) {
        let at_part = part.span();
        let (inner, optional) = optional(part);
        let span = if inner.is_empty() { at_part } else { inner.span() };
        match syn::parse2::<LitStr>(inner) {
            Ok(text) if text.value().is_empty() => {
                errors
                    .push(text.span(), "expected the name of a module, or a pattern such as `\"encoder.*\"`");
            }
            Ok(text) => patterns.push((text, optional)),
            Err(_) => {
                errors.push(span, format!("expected the name of a module as a string: {}", form_of("of")));
            }
        }
    }
    (!patterns.is_empty()).then_some(Of::Patterns(patterns))
}

/// Parses the field of `state = self.<field>`.
pub(super) fn saved_field(value: TokenStream, key: Span, errors: &mut Errors) -> Option<SavedState> {
    check_single(&value, errors)?;
    let at = if value.is_empty() { key } else { value.span() };
    if let Ok(Expr::Field(ExprField { base, member, .. })) = syn::parse2(value)
        && matches!(&*base, Expr::Path(base) if base.path.is_ident("self"))
    {
        return Some(SavedState { span: key, field: Some(member) });
    }
    let form = form_of("state");
    errors.push(at, format!("expected {form}; to save several values, make the field a struct"));
    None
}

/// Parses the paths of sets.
pub(super) fn sets(list: TokenStream, at: Span, errors: &mut Errors) -> Vec<Path> {
    if check_single(&list, errors).is_none() {
        return Vec::new();
    }
    let mut sets = Vec::new();
    for part in parts("in", list, at, errors) {
        let span = part.span();
        match syn::parse2::<syn::TypePath>(part) {
            Ok(TypePath { path, qself: None, .. }) if sets.contains(&path) => {
                errors.push(span, "the hook is in this set already");
            }
            Ok(TypePath { path, qself: None, .. }) => {
                if begins_lowercase(&path) {
                    // A function, as in `after`, or a module.
                    errors.push(
                        span,
                        format!(
                            "a set is a type, whose name begins with a capital letter: {}",
                            form_of("in")
                        ),
                    );
                }
                sets.push(path);
            }
            _ => errors.push(span, format!("expected the path of a set of hooks: {}", form_of("in"))),
        }
    }
    sets
}

/// Returns whether the last word of a path begins with a lowercase letter, unlike the names of
/// types.
pub(super) fn begins_lowercase(path: &Path) -> bool {
    let last = path.segments.last().map(|segment| segment.ident.unraw().to_string());
    last.is_some_and(|last| last.starts_with(char::is_lowercase))
}

/// Parses the paths of hooks, each of which may be `optional(…)`.
pub(super) fn targets(key: &str, list: TokenStream, at: Span, errors: &mut Errors) -> Vec<Target> {
    let targets = parts(key, list, at, errors).into_iter().filter_map(|part| {
        let at_part = part.span();
        let (inner, optional) = optional(part);
        let span = if inner.is_empty() { at_part } else { inner.span() };
        let second = split_at_commas(inner.clone()).into_iter().nth(1).filter(|_| optional);
        if let Some(second) = second {
            errors.push(second.span(), "`optional` takes one path: write one `optional` for each");
            return None;
        }
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
    });
    targets.collect()
}

pub(super) fn kind_of(literal: &Lit) -> &'static str {
    match literal {
        Lit::Str(_) => "a string",
        Lit::Float(_) => "a floating-point number",
        Lit::Bool(_) => "a boolean",
        Lit::Char(_) => "a character",
        _ => "another literal",
    }
}
