//! `#[hook]`: parse → check → expand. After a mistake: the user's item and all messages.

#[cfg(test)]
mod advice;
mod arguments;
mod check;
mod expand;
mod fallback;
mod foreign;
mod parse;
mod reads;
mod signature;
mod values;
mod words;

use std::sync::LazyLock;

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

use crate::errors::Errors;
use crate::krate::Krate;
use arguments::{Arguments, On};
use check::Checked;
use parse::Item;
use signature::takes_trainer;

/// Expands an item with `#[hook]`.
pub(crate) fn expand(attribute: TokenStream, tokens: &TokenStream) -> TokenStream {
    expand_as(attribute, tokens, false)
}

/// Expands an item with `#[hook]`. `is_own` says whether it is one of `trainer` itself.
pub(crate) fn expand_as(attribute: TokenStream, tokens: &TokenStream, is_own: bool) -> TokenStream {
    let mut errors = Errors::default();
    let arguments = Arguments::parse(attribute, on(tokens), &mut errors);
    let parsed = Item::parse(tokens.clone(), &mut errors);
    let Some(mut item) = errors.keep(parsed) else {
        return fallback::outline(tokens, errors);
    };
    if !Krate::check(arguments.krate.as_ref(), "#[hook(crate = my_framework::trainer)]", &mut errors) {
        let report = errors.finish().err();
        return quote!(#item #report);
    }
    let checked = check::check(&item, &arguments, &mut errors);
    match errors.finish() {
        // rustc reports the unused parameter.
        Ok(()) if matches!(&item, Item::Block(block) if block.has_unused_parameter()) => quote!(#item),
        Ok(()) => {
            let registration = if *IN_RUST_ANALYZER {
                // Tokens with the location of the user's tokens would be additional targets of "go
                // to definition".
                fallback::hooks(&checked, &arguments, &Krate::of(arguments.krate.as_ref()))
            } else {
                Some(expand::expand(&checked, &arguments, is_own))
            };
            let words = words(&checked, &arguments);
            quote!(#words #item #registration)
        }
        Err(report) => match &item {
            // Otherwise, rustc would report the missing parameter of `Trainer`.
            Item::Function(function) if takes_trainer(function) => report,
            // Otherwise, rustc would report the block a second time.
            Item::Block(block) if block.of_trait.is_none() && block.is_of_foreign_type() => report,
            _ => {
                let krate = Krate::of(arguments.krate.as_ref());
                let hooks = fallback::hooks(&checked, &arguments, &krate);
                let words = words(&checked, &arguments);
                fallback::repair(&mut item, &krate);
                match &item {
                    // The function may be in an impl block, which cannot contain other items, so
                    // the report goes into its body.
                    Item::Function(function) => {
                        let reporting = function.reporting(&report);
                        quote!(#words #reporting)
                    }
                    _ => quote!(#words #item #hooks #report),
                }
            }
        },
    }
}

/// Returns whether the tokens are those of a block or of a function. Any other item is refused.
fn on(tokens: &TokenStream) -> On {
    let mut words = tokens.clone().into_iter().map(|token| token.to_string());
    match words.find(|word| word == "impl" || word == "fn").as_deref() {
        Some("fn") => On::Function,
        _ => On::Block,
    }
}

/// Expands the words of the attributes to paths, including half-typed ones, so that an editor
/// completes them and shows their docs. This happens only in rust-analyzer: elsewhere, our messages
/// about unknown keys are better than rustc's about these paths. Emitting the paths behind
/// `cfg(rust_analyzer)` instead would need an `allow(unexpected_cfgs)`, which `#![forbid(…)]` in
/// the user's crate rejects.
///
/// The paths come first: rust-analyzer completes a word only if its offset is within the length of
/// the expansion without that word.
fn words(checked: &Checked<'_>, arguments: &Arguments) -> TokenStream {
    let all = || [arguments].into_iter().chain(checked.hooks().iter().map(|hook| hook.arguments));
    let words: Vec<_> = all().flat_map(|arguments| &arguments.words).collect();
    if words.is_empty() || !in_editor() {
        return TokenStream::new();
    }
    // The hooks and sets that the keys name, so that an editor finds their definitions.
    let paths = all().flat_map(Arguments::paths);
    let paths: TokenStream = paths.map(|path| quote!(use #path as _;)).collect();
    let krate = Krate::of(arguments.krate.as_ref());
    let trainer = krate.at(Span::call_site());
    let import = krate.import();
    let uses = words.iter().map(|(module, word)| {
        let module = module.iter().map(|name| Ident::new(name, Span::call_site()));
        quote!(use #trainer::#(#module::)*#word as _;)
    });
    quote!(const _: () = { #import #(#uses)* #paths };)
}

/// Whether rust-analyzer's server for procedural macros expands the macro.
static IN_RUST_ANALYZER: LazyLock<bool> = LazyLock::new(|| {
    let program = std::env::current_exe().unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().contains("rust-analyzer"))
});

/// Returns whether words are expanded for an editor: in rust-analyzer, and in unit tests.
fn in_editor() -> bool {
    *IN_RUST_ANALYZER || !proc_macro::is_available()
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    fn tokens(text: &str) -> TokenStream {
        TokenStream::from_str(text).unwrap()
    }

    const ATTRIBUTES: &[&str] = &[
        "",
        "ord =",
        "after_step, ord = -3",
        "ord = \"10\", order, = 3,, every()",
        "around = , after()",
        "a::b::c",
    ];

    #[test]
    fn half_typed_items_are_kept_without_panicking() {
        for item in
            ["", "fn", "fn after_step", "pub", "impl", "impl X", "impl X { fn }", "# [doc]", "fn x() -> {}"]
        {
            for attribute in ATTRIBUTES {
                let expanded = expand(tokens(attribute), &tokens(item)).to_string();
                assert!(expanded.contains(&tokens(item).to_string()), "`{item}` became `{expanded}`");
            }
        }
    }

    #[test]
    fn half_typed_words_become_paths_for_editors() {
        for (attribute, path) in [
            ("o", "language :: o"),
            ("ord = 3, ev", "language :: ev"),
            ("every = 3", "language :: every"),
            ("only = va", "phase :: va"),
            ("only = ", "phase :: train"),
        ] {
            let item = tokens("fn x(cx: &mut Cx<AfterStep>) {}");
            let expanded = expand(tokens(attribute), &item).to_string();
            let import = format!("use :: trainer :: {path} as _ ;");
            let at = expanded.find("fn x");
            assert!(
                expanded.find(&import).is_some_and(|import| Some(import) < at),
                "`{attribute}` became `{expanded}`"
            );
        }
    }
}
