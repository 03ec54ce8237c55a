//! The types of the task, batch and prediction that a hook reads in every call: for example
//! `cx.batch::<MyBatch>()?` before the first branch of its body. `build` compares them with those
//! of the task.

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, Pat};

use super::parse::Function;

/// The methods of a context whose type argument is the task, its batch or its prediction.
const METHODS: [&str; 5] = ["task", "task_mut", "batch", "batch_mut", "pred"];

/// Keywords that may keep the calls after them from being reached.
const BRANCHES: [&str; 12] =
    ["if", "match", "while", "for", "loop", "return", "break", "continue", "else", "move", "async", "unsafe"];

/// Keywords that declare a name. A type in the body may refer to such a name.
const ITEMS: [&str; 8] = ["use", "struct", "enum", "type", "union", "mod", "trait", "fn"];

/// Macros that neither return nor declare a name.
const MACROS: [&str; 13] = [
    "println",
    "print",
    "eprintln",
    "eprint",
    "format",
    "vec",
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "write",
    "writeln",
];

/// A call of one of the context's methods, with its type argument as written.
pub(super) struct Read {
    pub(super) method: Ident,
    pub(super) of: TokenStream,
}

/// Returns the types that a hook reads in every call, with the methods that read them.
pub(super) fn reads(function: &Function) -> Vec<Read> {
    let Some(context) = name_of_context(function) else { return Vec::new() };
    let mut found = Vec::new();
    if let Some(TokenTree::Group(body)) = function.body.clone().into_iter().next()
        && !declares_names(&body.stream())
    {
        collect(body.stream(), &context, &mut found);
    }
    found
}

/// Returns the name of the first argument after `self`.
fn name_of_context(function: &Function) -> Option<Ident> {
    let first = function.signature.inputs.iter().find_map(|argument| match argument {
        FnArg::Typed(argument) => Some(&*argument.pat),
        FnArg::Receiver(_) => None,
    });
    match first? {
        Pat::Ident(name) => Some(name.ident.clone()),
        _ => None,
    }
}

/// Returns whether tokens contain an item, or a macro that may expand to one.
fn declares_names(tokens: &TokenStream) -> bool {
    let mut tokens = tokens.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        let declares = match &token {
            TokenTree::Group(group) => declares_names(&group.stream()),
            TokenTree::Ident(word) => {
                let is_macro = tokens.peek().is_some_and(|next| next.to_string() == "!");
                let word = word.to_string();
                ITEMS.contains(&&*word) || is_macro && !MACROS.contains(&&*word)
            }
            _ => false,
        };
        if declares {
            return true;
        }
    }
    false
}

/// Adds to `found` the calls before the first branch. Returns whether there is no branch.
fn collect(tokens: TokenStream, context: &Ident, found: &mut Vec<Read>) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (nth, token) in tokens.iter().enumerate() {
        let goes_on = match token {
            TokenTree::Group(group) => match group.delimiter() {
                Delimiter::Parenthesis | Delimiter::None => collect(group.stream(), context, found),
                Delimiter::Bracket => true,
                Delimiter::Brace => false,
            },
            TokenTree::Ident(word) if word == context => {
                found.extend(read(&tokens[nth + 1..]));
                true
            }
            TokenTree::Ident(word) => !BRANCHES.contains(&&*word.to_string()),
            // The start of a closure or an attribute, which may be a `cfg`, or `||` or `&&`.
            TokenTree::Punct(punct) => match punct.as_char() {
                '|' | '#' => false,
                '&' => !matches!(tokens.get(nth + 1), Some(TokenTree::Punct(next)) if next.as_char() == '&'),
                _ => true,
            },
            TokenTree::Literal(_) => true,
        };
        if !goes_on {
            return false;
        }
    }
    true
}

/// Returns the call at the start of tokens such as `.batch::<MyBatch>()?`.
fn read(tokens: &[TokenTree]) -> Option<Read> {
    let is = |nth: usize, text: &str| tokens.get(nth).is_some_and(|token| token.to_string() == text);
    let TokenTree::Ident(method) = tokens.get(1)? else { return None };
    let is_read = METHODS.iter().any(|known| method == known);
    if !(is_read && is(0, ".") && is(2, ":") && is(3, ":") && is(4, "<")) {
        return None;
    }
    let mut depth = 1;
    let mut end = 5;
    while depth > 0 {
        let token = tokens.get(end)?;
        // A type to infer, or a lifetime, which may be one of the function's.
        if contains(token, &["_", "'"]) {
            return None;
        }
        match token.to_string().as_str() {
            "<" => depth += 1,
            ">" if !is(end - 1, "-") => depth -= 1,
            _ => {}
        }
        end += 1;
    }
    let TokenTree::Group(arguments) = tokens.get(end)? else { return None };
    let is_called = arguments.delimiter() == Delimiter::Parenthesis && arguments.stream().is_empty();
    let of = tokens[5..end - 1].iter().cloned().collect::<TokenStream>();
    (is_called && is(end + 1, "?") && !of.is_empty()).then(|| Read { method: method.clone(), of })
}

/// Returns whether a token is one of `texts`, or a group that contains one of them.
fn contains(token: &TokenTree, texts: &[&str]) -> bool {
    match token {
        TokenTree::Group(group) => group.stream().into_iter().any(|token| contains(&token, texts)),
        token => texts.contains(&token.to_token_stream().to_string().as_str()),
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;
    use crate::errors::Errors;
    use crate::hook::parse::Item;

    fn found(body: &str) -> Vec<String> {
        let text = format!("fn f(cx: &Cx<A>) -> Result<()> {{ {body} }}");
        let item = Item::parse(TokenStream::from_str(&text).unwrap(), &mut Errors::default()).unwrap();
        let Item::Function(function) = item else { panic!("not a function") };
        reads(&function).into_iter().map(|read| format!("{} {}", read.method, read.of)).collect()
    }

    #[test]
    fn types_read_by_all_calls_are_detected() {
        assert_eq!(found("let batch = cx.batch::<Pair>()?;"), ["batch Pair"]);
        assert_eq!(
            found("let (a, b) = cx.batch::<(Tensor, Tensor)>()?; Ok(())"),
            ["batch (Tensor , Tensor)"]
        );
        assert_eq!(found("log(cx.task::<Net<f32>>()?.x, cx.pred::<Vec<Tensor>>()?);").len(), 2);
        assert_eq!(found("let x = fallible()?; *cx.batch_mut::<a::B>()? = x;"), ["batch_mut a :: B"]);
        assert_eq!(found("println!(\"x\"); cx.task_mut::<[T; 3]>()?;"), ["task_mut [T ; 3]"]);
        assert_eq!(found("cx.batch::<Box<dyn Fn(A) -> B>>()?;"), ["batch Box < dyn Fn (A) -> B >"]);
    }

    #[test]
    fn types_that_some_calls_do_not_read_are_left_out() {
        for body in [
            "if x { return Ok(()); } cx.batch::<Pair>()?;",
            "let Some(x) = y else { return Ok(()) }; cx.batch::<Pair>()?;",
            "let _ = x && cx.batch::<Pair>()?.1;",
            "let f = |x| 1; cx.batch::<Pair>()?;",
            "#[cfg(test)] cx.batch::<Pair>()?;",
            "cx.batch::<Pair>().ok();",
            "if let Ok(x) = cx.batch::<Pair>() {}",
            "cx.batch::<_>()?; cx.batch::<Vec<_>>()?; cx.batch::<Ref<'a>>()?; cx.batch()?;",
            "other.batch::<Pair>()?;",
            "use crate::Pair; cx.batch::<Pair>()?;",
            "cx.batch::<Pair>()?; struct Pair;",
            "declare!(Pair); cx.batch::<Pair>()?;",
            "{ cx.batch::<Pair>()?; }",
        ] {
            assert!(found(body).is_empty(), "{body}");
        }
    }
}
