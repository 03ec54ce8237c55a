//! Checks of a hook's signature.

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{FnArg, GenericArgument, PathArguments, Receiver, ReceiverKind, Type, WherePredicate};

use super::foreign;
use super::parse::{Function, flattened, is_foreign, peeled};
use crate::errors::Errors;
use crate::lifecycle::{pascal, snake};
use crate::moments::{is_operation, is_point};

/// Reports the mistakes that the tokens of a hook's signature reveal.
pub(super) fn signature(function: &Function, in_block: bool, errors: &mut Errors) {
    let sig = &function.signature;
    qualifiers(sig, in_block, errors);
    receiver(sig, in_block, errors);
    let arguments: Vec<_> =
        sig.inputs.iter().filter(|argument| matches!(argument, FnArg::Typed(_))).collect();
    let Some(FnArg::Typed(first)) = arguments.first() else {
        errors.push(
            sig.ident.span(),
            format!("a hook takes its context: `cx: &mut Cx<{}>`", example(&sig.ident)),
        );
        return;
    };
    if let [_, FnArg::Typed(context)] = &arguments[..]
        && is_named("Next", &first.ty)
        && is_context(&context.ty)
    {
        let operation = marker_of(&context.ty).unwrap_or_default();
        errors.push(
            first.span(),
            format!("a hook takes its context first: `cx: &mut Cx<{operation}>, next: Next<{operation}>`"),
        );
        return;
    }
    if !is_context(&first.ty)
        && !matches!(peeled(&first.ty), Type::Reference(_))
        && arguments[1..].iter().any(|other| matches!(other, FnArg::Typed(other) if is_context(&other.ty)))
    {
        errors.push(first.span(), "a hook takes only its context: remove this argument");
        return;
    }
    let around = next_of(function);
    if let [_, FnArg::Typed(second)] = &arguments[..]
        && around.is_none()
        && let Some(operation) = marker_of(&first.ty).filter(|marker| is_operation(&snake(marker)))
    {
        errors.push(second.ty.span(), format!("a hook around `{operation}` takes `next: Next<{operation}>`"));
        return;
    }
    if let Some(Type::Reference(reference)) = around.map(peeled) {
        errors.push(
            reference.and_token.span(),
            "a hook takes `next` by value, because it can run at most once: remove `&`",
        );
    }
    for extra in arguments.iter().skip(if around.is_some() { 2 } else { 1 }) {
        let all = if around.is_some() {
            "a hook takes only its context and `next`: remove this argument"
        } else {
            "a hook takes only its context, and around an operation `next: Next<…>`: remove this argument"
        };
        errors.push(extra.span(), all);
    }
    context(&first.ty, sig, around.is_some(), errors);
}

/// Reports qualifiers and parameters that a hook cannot have, such as `async` or a generic type.
fn qualifiers(sig: &syn::Signature, in_block: bool, errors: &mut Errors) {
    errors.refuse(&sig.constness, "a hook cannot be a `const fn`: remove `const`");
    errors.refuse(&sig.asyncness, "the training loop is synchronous and cannot await a hook: remove `async`");
    if let syn::Safety::Unsafe(word) = &sig.safety {
        errors.push(
            word.span(),
            "the trainer cannot uphold the safety contract of an `unsafe fn`: wrap it in a safe function",
        );
    }
    errors.refuse(&sig.abi, "the trainer calls hooks with the Rust ABI: remove `extern`");
    errors.refuse(&sig.variadic, "a hook cannot be variadic: its arguments are fixed");
    let outlives = sig.generics.where_clause.iter().flat_map(|clause| &clause.predicates);
    let outlives = outlives.filter_map(|predicate| match predicate {
        WherePredicate::Lifetime(predicate) => Some(predicate.lifetime.span()),
        _ => None,
    });
    for span in outlives {
        errors.push(span, "a hook borrows its context for one call only: remove this lifetime bound");
    }
    let mut parameters = sig.generics.params.iter();
    errors.refuse(
        &parameters.find(|parameter| !matches!(parameter, syn::GenericParam::Lifetime(_))),
        if in_block {
            "a hook is registered once, so a hook method cannot be generic: make the type generic instead, or move a \
             helper to an `impl` block without `#[hook]`"
        } else {
            "a hook is registered once, so a hook function cannot be generic: make it a method of a generic type, in a \
             `#[hook] impl` block"
        },
    );
}

/// Whether the method takes `&mut self`.
pub(super) fn takes_mut_self(sig: &syn::Signature) -> bool {
    match sig.receiver().map(|receiver| &receiver.kind) {
        Some(ReceiverKind::Reference(_, _, mutability)) => mutability.is_some(),
        Some(ReceiverKind::Typed(_, written)) => {
            matches!(peeled(written), Type::Reference(reference) if reference.mutability.is_some())
        }
        _ => false,
    }
}

/// Reports a method outside of a block, and a receiver that is not a reference.
fn receiver(sig: &syn::Signature, in_block: bool, errors: &mut Errors) {
    match sig.receiver() {
        Some(receiver) if !in_block => {
            errors.push(receiver.span(), "a method is a hook only inside a `#[hook] impl` block: add `#[hook]` to the block, and on methods write `#[hook]` itself, not an alias");
        }
        Some(Receiver { kind: ReceiverKind::Reference(_, Some(lifetime), _), .. })
            if lifetime.ident == "static" =>
        {
            errors.push(lifetime.span(), "a hook borrows its value for one call only: remove `'static`");
        }
        Some(receiver) if matches!(receiver.kind, ReceiverKind::Value) => {
            errors.push(
                receiver.span(),
                "a hook is called many times and cannot consume `self`: take `&mut self` or `&self`",
            );
        }
        Some(receiver) if matches!(&receiver.kind, ReceiverKind::Typed(_, written) if !is_reference(written)) =>
        {
            errors.push(
                receiver.span(),
                "the trainer owns the value and passes a reference to its hooks: take `&mut self` or `&self`",
            );
        }
        None if in_block => {
            errors.push(sig.ident.span(), "a hook in an `impl` block takes `&mut self` or `&self` first");
        }
        None if flattened(sig.to_token_stream()).any(|token| token.to_string() == "Self") => errors.push(
            sig.ident.span(),
            "a function in an `impl` block is a hook only with `#[hook]` on the block, and with `&mut self` or `&self` first: \
             add both, or move it out of the block",
        ),
        _ => {}
    }
}

/// Reports a first argument that is not `&mut Cx<…>` or `&Cx<…>`.
fn context(context: &Type, sig: &syn::Signature, is_around: bool, errors: &mut Errors) {
    match peeled(context) {
        Type::Reference(reference) => {
            if let Some(lifetime) = &reference.lifetime
                && lifetime.ident == "static"
            {
                errors
                    .push(lifetime.span(), "a hook borrows its context for one call only: remove `'static`");
            }
            if is_around && reference.mutability.is_none() {
                errors.push(
                    reference.and_token.span(),
                    format!(
                        "a hook around an operation decides whether the operation runs: take `&mut Cx<{}>`",
                        marker_of(context).unwrap_or_default()
                    ),
                );
            }
            match peeled(&reference.elem) {
                Type::ImplTrait(written) => impl_trait(written, errors),
                Type::Reference(second) if is_context(&second.elem) => errors.push(
                    second.and_token.span(),
                    "a hook takes its context by one reference: remove this `&`",
                ),
                main if is_named("Main", main) => no_main(main, errors),
                cx if is_context(cx) && unnamed_moment(cx).is_some() => no_moment(cx, errors),
                // Any other type may be an alias of the context.
                other if !is_context(other) && !may_be_an_alias(other) => no_context(other, sig, errors),
                _ => {}
            }
        }
        Type::ImplTrait(written) => impl_trait(written, errors),
        main if is_named("Main", main) => no_main(main, errors),
        other if is_context(other) => errors.push(
            innermost_path(other),
            "a hook takes its context by reference: write `&Cx<…>` if it only observes, or `&mut Cx<…>`",
        ),
        other => no_context(other, sig, errors),
    }
}

/// Reports `Main` outside of a context: `Main<Cx<AfterStep>>`, `Main<AfterStep>`.
fn no_main(main: &Type, errors: &mut Errors) {
    let inner = argument(main);
    let marker =
        inner.and_then(|inner| if is_context(inner) { marker_of(inner) } else { Some(last_word(inner)) });
    errors.push(
        innermost_path(main),
        format!("`Main` goes into the context: write `&Cx<Main<{}>>`", marker.unwrap_or_default()),
    );
}

/// Reports a context whose argument is not the name of a moment.
fn no_moment(context: &Type, errors: &mut Errors) {
    let Some(written) = unnamed_moment(context) else { return };
    let text = written.to_string();
    let word = text.trim_matches('"');
    let marker = if is_point(word) { pascal(word) } else { "AfterStep".into() };
    errors.push(
        written.into_iter().next().map_or_else(Span::call_site, |token| token.span()),
        format!(
            "expected the name of one moment: `&Cx<{marker}>`; hooks at several moments are methods of a generic block, \
             `impl<P: AtPoint> Timer<P>`"
        ),
    );
}

/// Returns the argument of a context if it cannot be a moment: `impl AtPoint`, `dyn AtPoint`, `_`,
/// or a literal.
pub(super) fn unnamed_moment(context: &Type) -> Option<TokenStream> {
    match peeled(context) {
        Type::Reference(reference) => unnamed_moment(&reference.elem),
        Type::Path(path) => match &path.path.segments.last()?.arguments {
            PathArguments::AngleBracketed(arguments) => match arguments.args.last()? {
                GenericArgument::Type(inner) => {
                    let unnamed = matches!(inner, Type::ImplTrait(_) | Type::TraitObject(_) | Type::Infer(_));
                    unnamed.then(|| inner.to_token_stream())
                }
                GenericArgument::Const(literal) => Some(literal.to_token_stream()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

fn no_context(written: &Type, sig: &syn::Signature, errors: &mut Errors) {
    errors.push(
        innermost_path(written),
        format!("a hook takes its context: `cx: &mut Cx<{}>`", example(&sig.ident)),
    );
}

/// Returns whether a type that is not written `Cx<…>` may be an alias of such a type.
pub(super) fn may_be_an_alias(written: &Type) -> bool {
    const OTHERS: [&str; 8] = ["Trainer", "Run", "Tensor", "Task", "Model", "Module", "VarStore", "Record"];
    match written {
        Type::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|last| !OTHERS.iter().any(|other| last.ident == other) && !is_foreign(written)),
        _ => false,
    }
}

fn impl_trait(written: &syn::TypeImplTrait, errors: &mut Errors) {
    errors.push(
        written.impl_token.span(),
        "expected the concrete context type `&mut Cx<…>`, found `impl …`: a hook runs at the moment in this type",
    );
}

/// Returns whether a type is a reference, also within an invisible group or parentheses.
fn is_reference(written: &Type) -> bool {
    matches!(peeled(written), Type::Reference(_))
}

/// Returns the marker type to show in a message: `AfterStep` for `after_step`. Also translates
/// points of other frameworks, and returns `…` for any other name.
fn example(name: &Ident) -> String {
    let name = name.unraw().to_string();
    match foreign::translate(&name) {
        _ if is_point(&name) => pascal(&name),
        Some(ours) => ours.marker,
        None => "…".into(),
    }
}

/// Returns whether the first argument after `self` is a `Cx`.
pub(super) fn takes_context(function: &Function) -> bool {
    context_of(function).is_some_and(is_context)
}

/// Returns whether the first argument is a `Trainer` without a type argument, as in other
/// frameworks.
pub(super) fn takes_trainer(function: &Function) -> bool {
    context_of(function).is_some_and(|first| is_named("Trainer", first) && argument(first).is_none())
}

/// Returns the type of the first argument after `self`.
pub(super) fn context_of(function: &Function) -> Option<&Type> {
    typed(function).next()
}

/// Returns the types of the arguments after `self`.
pub(super) fn typed(function: &Function) -> impl Iterator<Item = &Type> {
    function.signature.inputs.iter().filter_map(|argument| match argument {
        FnArg::Typed(argument) => Some(&*argument.ty),
        FnArg::Receiver(_) => None,
    })
}

/// Returns the type of the second argument after `self`, if it is a `Next`.
pub(super) fn next_of(function: &Function) -> Option<&Type> {
    typed(function).nth(1).filter(|second| is_named("Next", second))
}

fn is_context(written: &Type) -> bool {
    is_named("Cx", written)
}

/// Returns whether a type, or the type behind a reference, has this name.
pub(super) fn is_named(name: &str, written: &Type) -> bool {
    match peeled(written) {
        Type::Reference(reference) => is_named(name, &reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| segment.ident == name),
        _ => false,
    }
}

/// Returns the name of a type, without its path and parameters. If the type has no name, returns
/// its tokens.
pub(super) fn last_word(written: &Type) -> String {
    let name = match peeled(written) {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.unraw().to_string()),
        _ => None,
    };
    name.unwrap_or_else(|| written.to_token_stream().to_string())
}

/// Returns the name of the marker in a context type: `AfterStep` for `&mut Cx<AfterStep>` and for
/// `&mut Cx<Main<AfterStep>>`.
pub(super) fn marker_of(context: &Type) -> Option<String> {
    match main_of(context) {
        Some((_, marker)) => Some(marker),
        None => argument(context).map(last_word),
    }
}

/// Returns the marker in a context type, if it is a single word or a path `trainer::Marker`.
pub(super) fn marker_ident(context: &Type) -> Option<Ident> {
    let marker = argument(context)?;
    let marker = if is_named("Main", marker) { argument(marker)? } else { marker };
    match peeled(marker) {
        Type::Path(path) => {
            match &path.path.segments.iter().map(|segment| &segment.ident).collect::<Vec<_>>()[..] {
                [word] => Some(Ident::clone(word)),
                [krate, word] if *krate == "trainer" => Some(Ident::clone(word)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the span of `Main` and the name of the marker in it, for `&mut Cx<Main<AfterStep>>`.
pub(super) fn main_of(context: &Type) -> Option<(Span, String)> {
    let main = argument(context).filter(|argument| is_named("Main", argument))?;
    Some((innermost_path(main), last_word(argument(main)?)))
}

/// Returns the last generic argument of a type, or of the type behind a reference.
pub(super) fn argument(written: &Type) -> Option<&Type> {
    match peeled(written) {
        Type::Reference(reference) => argument(&reference.elem),
        Type::Path(path) => match &path.path.segments.last()?.arguments {
            PathArguments::AngleBracketed(arguments) => match arguments.args.last()? {
                GenericArgument::Type(inner) => Some(inner),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// Returns the span of a type's innermost generic argument, which is the likely mistake in a wrong
/// type.
pub(super) fn innermost(written: &Type) -> Span {
    match peeled(written) {
        Type::Reference(reference) => innermost(&reference.elem),
        Type::Path(path) => match path.path.segments.last() {
            None => written.span(),
            Some(segment) => match &segment.arguments {
                PathArguments::AngleBracketed(arguments) => match arguments.args.last() {
                    Some(GenericArgument::Type(inner)) => innermost(inner),
                    _ => segment.ident.span(),
                },
                _ => segment.ident.span(),
            },
        },
        _ => written.span(),
    }
}

/// Returns the span of a path's last segment, or of the whole type if it is not a path.
pub(super) fn innermost_path(written: &Type) -> Span {
    match peeled(written) {
        Type::Path(path) => {
            path.path.segments.last().map_or_else(|| written.span(), |segment| segment.ident.span())
        }
        _ => written.span(),
    }
}
