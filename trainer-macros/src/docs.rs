//! The lines of doc comments.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// The value of a doc attribute.
#[derive(Clone)]
pub(crate) enum Line {
    /// A line of a doc comment, with its leading space.
    Text(String),
    /// A macro call, as in `#[doc = concat!(…)]`, which rustc evaluates.
    Call(Expr),
}

/// Returns the values of the doc attributes.
pub(crate) fn lines(attributes: &[Attribute]) -> Vec<Line> {
    let values = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => Some(&pair.value),
        _ => None,
    });
    values.map(|value| literal(value).map_or_else(|| Line::Call(value.clone()), Line::Text)).collect()
}

/// Expands to the lines, without spaces around each, as one text.
pub(crate) fn joined(lines: &[Line], separator: &str) -> TokenStream {
    let texts: Option<Vec<&str>> = lines.iter().map(|line| line.text().map(str::trim)).collect();
    match texts {
        Some(texts) => texts.join(separator).into_token_stream(),
        None => {
            let parts = lines.iter().enumerate().map(|(nth, line)| {
                let before = if nth == 0 { "" } else { separator };
                match line {
                    Line::Text(text) => format!("{before}{}", text.trim()).into_token_stream(),
                    Line::Call(call) => quote!(#before, #call),
                }
            });
            quote!(::core::concat!(#(#parts),*))
        }
    }
}

impl Line {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Line::Text(text) => Some(text),
            Line::Call(_) => None,
        }
    }
}

impl ToTokens for Line {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Line::Text(text) => text.to_tokens(tokens),
            Line::Call(call) => call.to_tokens(tokens),
        }
    }
}

/// Returns the text of a string literal, also within the invisible group that a macro's fragment
/// `$docs:literal` creates.
fn literal(value: &Expr) -> Option<String> {
    match value {
        Expr::Group(group) => literal(&group.expr),
        Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value()),
        _ => None,
    }
}
