//! The expansion after a mistake: the user's item, so that code that uses it still compiles.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;
use syn::{AngleBracketedGenericArguments, FnArg, GenericArgument, PathArguments, Type};

use super::arguments::Arguments;
use super::check::{Checked, done_of, theirs};
use super::expand::implement;
use super::parse::{Function, Item, Member};
use super::signature::{context_of, is_named, next_of, takes_context, typed, unnamed_moment};
use crate::errors::Errors;
use crate::krate::Krate;

/// Returns the tokens of an item that could not be parsed, and the report of its errors. If the
/// tokens have a syntax error, only rustc reports it, because its message is better than ours.
pub(super) fn outline(tokens: &TokenStream, errors: Errors) -> TokenStream {
    // If the full parser accepts the tokens, rustc will too, and our own error is the only report.
    if syn::parse2::<syn::Item>(tokens.clone()).is_err() {
        return tokens.clone();
    }
    let report = errors.finish().err();
    quote!(#tokens #report)
}

/// Expands to an impl of `Hooks` for the type of a block with a mistake, so that code that uses
/// this type as a hook compiles.
pub(super) fn hooks(checked: &Checked<'_>, arguments: &Arguments, krate: &Krate<'_>) -> Option<TokenStream> {
    let Checked::Block(block, _) = checked else { return None };
    if !block.can_be_hooks() || arguments.more.is_some() {
        return None;
    }
    let trainer = krate.at(Span::call_site());
    let import = krate.import();
    let implementation = implement(
        block,
        arguments,
        krate,
        &quote! {
            fn __hooks() -> #trainer::__private::Definitions { ::core::unreachable!() }
        },
    );
    Some(quote!(const _: () = { #import #implementation };))
}

/// Corrects the types in the signatures of an item's hooks to the ones that the messages suggest,
/// so that rustc does not report the same mistake. A name of another framework becomes our marker;
/// around an operation, `&Cx<Backward>` and `&mut Cx<Main<Backward>>` become `&mut Cx<Backward>`.
pub(super) fn repair(item: &mut Item, krate: &Krate<'_>) {
    let functions: Vec<&mut Function> = match item {
        Item::Function(function) => vec![&mut **function],
        Item::Block(block) => {
            let methods = block.members.iter_mut().filter_map(|member| match member {
                Member::Method(method) => Some(&mut method.function),
                _ => None,
            });
            methods.collect()
        }
        Item::Other(..) => Vec::new(),
    };
    for function in functions {
        main_in_context(function, krate);
        if function.signature.asyncness.is_some() {
            name_lifetimes(function);
        }
        if !takes_context(function) {
            continue;
        }
        if typed(function).count() == 1 && done_of(function).is_some() {
            function.signature.output = syn::parse_quote!(-> ::core::result::Result<(), ::std::boxed::Box<dyn ::std::error::Error + ::core::marker::Send + ::core::marker::Sync>>);
        }
        let is_around = next_of(function).is_some();
        let ours = context_of(function).and_then(theirs);
        let ours = ours.map(|(word, ours)| {
            let marker = Ident::new(&ours.marker, word.span());
            let trainer = krate.at(word.span());
            syn::parse_quote!(#trainer::#marker)
        });
        let arguments = function.signature.inputs.iter_mut().filter_map(|argument| match argument {
            FnArg::Typed(argument) => Some(&mut *argument.ty),
            FnArg::Receiver(_) => None,
        });
        let mut operation = None;
        for written in arguments.take(2) {
            if is_named("Next", written) {
                if let Type::Reference(reference) = &*written {
                    *written = Type::clone(&reference.elem);
                }
                if let (Some(next), Some(operation)) = (argument_mut(written), operation.take()) {
                    *next = operation;
                }
                continue;
            }
            if unnamed_moment(written).is_some()
                && let Some(arguments) = arguments_mut(written)
            {
                let trainer = krate.at(Span::call_site());
                *arguments = syn::parse_quote!(<#trainer::AfterStep>);
            }
            if let Type::Reference(reference) = &mut *written
                && is_around
            {
                reference.mutability.get_or_insert_with(Default::default);
            }
            let Some(marker) = argument_mut(written) else { continue };
            if is_around
                && is_named("Main", marker)
                && let Some(inner) = argument_mut(marker).cloned()
            {
                *marker = inner;
            }
            let marker = if is_named("Main", marker) { argument_mut(marker) } else { Some(marker) };
            let Some(marker) = marker else { continue };
            if let Some(ours) = &ours {
                *marker = Type::clone(ours);
            }
            operation = Some(marker.clone());
        }
    }
}

/// Writes `Next<'_, Backward>` for `Next<Backward>`: rustc does not allow an `async fn` to leave
/// the lifetime out.
fn name_lifetimes(function: &mut Function) {
    for argument in &mut function.signature.inputs {
        if let FnArg::Typed(argument) = argument
            && is_named("Next", &argument.ty)
            && let Some(arguments) = arguments_mut(&mut argument.ty)
            && !matches!(arguments.args.first(), Some(GenericArgument::Lifetime(_)))
        {
            arguments.args.insert(0, syn::parse_quote!('_));
        }
    }
}

/// Replaces a first argument of type `Main<AfterStep>` or `&Main<Cx<AfterStep>>` with a context of
/// type `&mut Cx<Main<AfterStep>>`.
fn main_in_context(function: &mut Function, krate: &Krate<'_>) {
    let mut inputs = function.signature.inputs.iter_mut();
    let first = inputs.find_map(|argument| match argument {
        FnArg::Typed(argument) => Some(&mut *argument.ty),
        FnArg::Receiver(_) => None,
    });
    let Some(first) = first.filter(|first| is_named("Main", first)) else { return };
    let Some(mut marker) = argument_mut(first).cloned() else { return };
    if is_named("Cx", &marker)
        && let Some(inner) = argument_mut(&mut marker).cloned()
    {
        marker = inner;
    }
    let trainer = krate.at(Span::call_site());
    *first = syn::parse_quote!(&mut #trainer::Cx<#trainer::Main<#marker>>);
}

/// Returns the last generic argument of a type, or of the type behind a reference.
fn argument_mut(written: &mut Type) -> Option<&mut Type> {
    match arguments_mut(written)?.args.last_mut()? {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    }
}

/// Returns the generic arguments of a type, or of the type behind a reference.
fn arguments_mut(written: &mut Type) -> Option<&mut AngleBracketedGenericArguments> {
    match written {
        Type::Reference(reference) => arguments_mut(&mut reference.elem),
        Type::Path(path) => match &mut path.path.segments.last_mut()?.arguments {
            PathArguments::AngleBracketed(arguments) => Some(arguments),
            _ => None,
        },
        _ => None,
    }
}
