//! Comma-separated attribute arguments: shared parsing of keys and their values.

use proc_macro2::{TokenStream, TokenTree};
use syn::Expr;
use syn::parse::{ParseStream, Parser};

/// The tokens after the first word of an argument.
pub(crate) enum Form {
    /// `= …`
    Value(TokenStream),
    /// `( … )`
    List(TokenStream),
    Nothing,
    Other,
}

impl Form {
    pub(crate) fn of(rest: &TokenStream) -> Form {
        let mut tokens = rest.clone().into_iter();
        match tokens.next() {
            None => Form::Nothing,
            Some(TokenTree::Punct(punct)) if punct.as_char() == '=' => Form::Value(tokens.collect()),
            Some(TokenTree::Group(group)) if tokens.next().is_none() => Form::List(group.stream()),
            _ => Form::Other,
        }
    }
}

/// Splits at top-level commas, but not at commas in the generic arguments of a hook's path
/// (`after = Ema<f32, 2>`). If there is no argument before a comma, the comma itself becomes that
/// argument.
pub(crate) fn split_at_commas(tokens: TokenStream) -> Vec<TokenStream> {
    let mut parts = Vec::<TokenStream>::new();
    let mut part = Vec::<TokenTree>::new();
    let mut open = 0_u32;
    let mut last = ' ';
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut next = 0;
    while let Some(token) = tokens.get(next).cloned() {
        if part.is_empty()
            && let Some(end) = end_of_ord(&tokens[next..])
        {
            part.extend(tokens[next..next + end].iter().cloned());
            open = 0;
            last = ' ';
            next += end;
            continue;
        }
        next += 1;
        let of_path = part.first().is_some_and(|first| {
            let word = first.to_string();
            word == "before" || word == "after" || word.starts_with(char::is_uppercase) || last == ':'
        });
        if let TokenTree::Punct(punct) = &token {
            match punct.as_char() {
                '<' if of_path => open += 1,
                '>' if last != '-' => open = open.saturating_sub(1),
                _ => {}
            }
            last = punct.as_char();
        }
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ',' && open == 0 => {
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

/// Returns the number of tokens in `ord = <expression>`, or `None` if the tokens start with
/// anything else. Only an expression parser distinguishes `A < B` from the generic arguments of a
/// path.
fn end_of_ord(tokens: &[TokenTree]) -> Option<usize> {
    match tokens {
        [TokenTree::Ident(key), TokenTree::Punct(punct), value @ ..]
            if key == "ord" && punct.as_char() == '=' && !value.is_empty() =>
        {
            let left = |input: ParseStream<'_>| {
                input.parse::<Expr>()?;
                Ok(input.parse::<TokenStream>()?.into_iter().count())
            };
            Some(tokens.len() - left.parse2(value.iter().cloned().collect()).ok()?)
        }
        _ => None,
    }
}

/// Returns the candidate to suggest for a misspelled name: the most similar one, if at most one in
/// three letters differs. Returns `None` if no candidate is that similar, because advice that is
/// not what the user meant leads to the next error.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|known| (strsim::damerau_levenshtein(name, known), known));
    let near =
        scored.filter(|(distance, known)| 3 * distance <= name.chars().count().max(known.chars().count()));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}
