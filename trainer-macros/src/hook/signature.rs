//! Checks of a hook's signature.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{FnArg, GenericArgument, Path, PathArguments, ReceiverKind, Type};

use super::parse::{Function, peeled};
use crate::errors::Errors;

/// Reports the mistakes in the signature of a hook that its tokens reveal.
pub(super) fn signature(function: &Function, in_block: bool, around: Option<&Path>, errors: &mut Errors) {
    let sig = &function.signature;
    qualifiers(sig, errors);
    receiver(sig, in_block, errors);
    let arguments: Vec<_> =
        sig.inputs.iter().filter(|argument| matches!(argument, FnArg::Typed(_))).collect();
    let Some(first) = arguments.first() else {
        errors.push(
            sig.ident.span(),
            format!("a hook takes its context: `cx: &mut Cx<{}>`", example(&sig.ident)),
        );
        return;
    };
    if let (Some(operation), [FnArg::Typed(next), FnArg::Typed(context)]) = (around, &arguments[..])
        && is_named("Next", &next.ty)
        && is_context(&context.ty)
    {
        let operation = marker(operation);
        errors.push(
            next.span(),
            format!("a hook takes its context first: `cx: &mut Cx<{operation}>, next: Next<{operation}>`"),
        );
        return;
    }
    let further = &arguments[1..];
    match (around, further.first()) {
        (Some(operation), None) => {
            let operation = marker(operation);
            errors.push(
                sig.ident.span(),
                format!(
                    "a hook around an operation takes a second argument: `next: Next<{operation}>`"
                ),
            );
        }
        (Some(_), Some(FnArg::Typed(next))) => {
            if let Type::Reference(reference) = peeled(&next.ty) {
                errors.push(
                    reference.and_token.span(),
                    "a hook takes `next` by value, because it can run at most once: remove `&`",
                );
            }
        }
        (None, Some(FnArg::Typed(next))) if is_named("Next", &next.ty) => errors.push(
            next.span(),
            "only a hook around an operation takes `next`: name the operation, as in `#[hook(around = backward)]`",
        ),
        _ => {}
    }
    let known = if around.is_some() { 2 } else { 1 };
    for extra in arguments.iter().skip(known) {
        let is_next = around.is_none() && matches!(extra, FnArg::Typed(extra) if is_named("Next", &extra.ty));
        if !is_next {
            let all = if around.is_some() { "only its context and `next`" } else { "only its context" };
            errors.push(extra.span(), format!("a hook takes {all}: remove this argument"));
        }
    }
    if let FnArg::Typed(first) = first {
        context(&first.ty, sig, in_block, errors);
    }
}

/// Reports what a function cannot be, such as `async` or generic.
fn qualifiers(sig: &syn::Signature, errors: &mut Errors) {
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
    let mut parameters = sig.generics.params.iter();
    errors.refuse(
        &parameters.find(|parameter| !matches!(parameter, syn::GenericParam::Lifetime(_))),
        "a hook function is registered once, so it cannot be generic: use methods of a generic type in a `#[hook] impl` block",
    );
}

/// Reports a method outside of a block, and a receiver that is not a reference.
fn receiver(sig: &syn::Signature, in_block: bool, errors: &mut Errors) {
    match sig.receiver() {
        Some(receiver) if !in_block => {
            errors.push(receiver.span(), "a method is a hook only inside a `#[hook] impl` block: add `#[hook]` to the block, and on methods write `#[hook]` itself, not an alias");
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
        _ => {}
    }
}

/// Reports a first argument that is not `&mut Cx<…>`.
fn context(context: &Type, sig: &syn::Signature, in_block: bool, errors: &mut Errors) {
    match peeled(context) {
        Type::Reference(reference) if reference.mutability.is_some() => {
            if let Some(lifetime) = &reference.lifetime
                && lifetime.ident == "static"
            {
                errors
                    .push(lifetime.span(), "a hook borrows its context for one call only: remove `'static`");
            }
        }
        Type::Reference(reference) => {
            let helper = if in_block {
                "; move a helper that takes `&Cx` to an `impl` block without `#[hook]`"
            } else {
                ""
            };
            errors.push(
                reference.and_token.span(),
                format!("a hook takes its context by mutable reference: write `&mut Cx<…>`{helper}"),
            );
        }
        Type::ImplTrait(written) => {
            errors.push(
                written.impl_token.span(),
                "expected the concrete context type `&mut Cx<…>`, found `impl …`",
            );
        }
        other if is_context(other) => {
            errors.push(
                innermost_path(other),
                "a hook takes its context by mutable reference: write `&mut Cx<…>`",
            );
        }
        other => errors.push(
            innermost_path(other),
            format!("a hook takes its context: `cx: &mut Cx<{}>`", example(&sig.ident)),
        ),
    }
}

/// Returns the name of an operation's marker type.
fn marker(operation: &Path) -> String {
    let name =
        operation.segments.last().map(|segment| crate::lifecycle::pascal(&segment.ident.unraw().to_string()));
    name.unwrap_or_default()
}

/// Returns whether a type is a reference, also within an invisible group or parentheses.
fn is_reference(written: &Type) -> bool {
    matches!(peeled(written), Type::Reference(_))
}

/// Returns the marker type for a message: `AfterStep` for `after_step`, and `…` for a name that
/// does not resemble a point.
fn example(name: &Ident) -> String {
    let name = name.unraw().to_string();
    if !name.starts_with("before_") && !name.starts_with("after_") {
        return "…".into();
    }
    crate::lifecycle::pascal(&name)
}

/// Returns whether the first argument after `self` is a `Cx`.
pub(super) fn takes_context(function: &Function) -> bool {
    context_of(function).is_some_and(is_context)
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

/// Returns the name of a type, without its path and parameters, or the tokens of a type that has no
/// name.
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

/// Returns the span of `Main` and the name of the marker in it, for `&mut Cx<Main<AfterStep>>`.
pub(super) fn main_of(context: &Type) -> Option<(Span, String)> {
    let main = argument(context).filter(|argument| is_named("Main", argument))?;
    Some((innermost_path(main), last_word(argument(main)?)))
}

/// Returns the last generic argument of a type, or of the type behind a reference.
fn argument(written: &Type) -> Option<&Type> {
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
fn innermost_path(written: &Type) -> Span {
    match peeled(written) {
        Type::Path(path) => {
            path.path.segments.last().map_or_else(|| written.span(), |segment| segment.ident.span())
        }
        _ => written.span(),
    }
}
