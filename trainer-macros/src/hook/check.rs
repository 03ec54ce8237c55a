//! Every mistake that can be seen from the tokens alone. Names and types are rustc's to check.

use proc_macro2::{Ident, Span};
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::{FnArg, GenericArgument, Path, PathArguments, ReceiverKind, ReturnType, Type};

use super::arguments::Arguments;
use super::foreign;
use super::parse::{Block, Function, Item, Member};
use crate::errors::Errors;

/// The hooks of an item, ready to be expanded.
pub(super) enum Checked<'a> {
    Free(Vec<Hook<'a>>),
    Block(&'a Block, Vec<Hook<'a>>),
}

/// One function or method that is a hook.
pub(super) struct Hook<'a> {
    pub(super) function: &'a Function,
    /// The path of its point's marker.
    pub(super) point: Path,
    pub(super) arguments: &'a Arguments,
    /// The arguments of the block that it stands in.
    pub(super) inherited: Option<&'a Arguments>,
    /// Where a wrong context is reported: on `AfterStep` in `&mut Cx<AfterStep>`.
    pub(super) context: Span,
    /// Where a wrong return type is reported.
    pub(super) output: Span,
}

impl Checked<'_> {
    pub(super) fn hooks(&self) -> &[Hook<'_>] {
        match self {
            Checked::Free(hooks) | Checked::Block(_, hooks) => hooks,
        }
    }
}

pub(super) fn check<'a>(item: &'a Item, arguments: &'a Arguments, errors: &mut Errors) -> Checked<'a> {
    match item {
        Item::Function(function) => Checked::Free(vec![hook(function, false, arguments, None, errors)]),
        Item::Block(item) => Checked::Block(item, block(item, arguments, errors)),
        Item::Other(word, _) => {
            errors.push(
                word.span(),
                "`#[hook]` goes on a function, or on an `impl` block whose methods are hooks",
            );
            Checked::Free(Vec::new())
        }
    }
}

fn block<'a>(block: &'a Block, arguments: &'a Arguments, errors: &mut Errors) -> Vec<Hook<'a>> {
    if block.of_trait.is_some() {
        errors.push(
            block.impl_token.span,
            "`#[hook]` goes on an inherent block, `impl MyHook { … }`, not on the impl of a trait",
        );
        return Vec::new();
    }
    if let Some(point) = &arguments.point {
        errors.push(
            point.span(),
            "a block has no point of its own: its methods are named after points, or carry `#[hook(<point>)]`",
        );
    }
    let mut hooks = Vec::<Hook<'_>>::new();
    for member in &block.members {
        let Member::Method(method) = member else { continue };
        let name = &method.function.signature.ident;
        let is_hook = method.hook.is_some() || takes_context(&method.function);
        if !is_hook {
            let word = name.to_string();
            if word.starts_with("before_")
                || word.starts_with("after_")
                || ["setup", "teardown"].contains(&&*word)
            {
                errors.push(
                    name.span(),
                    format!(
                        "`{word}` is named like a hook but takes no `&mut Cx<…>` after `self`; \
                         a method that is no hook goes into another impl block"
                    ),
                );
            }
            continue;
        }
        let (first, inherited) = method.hook.as_ref().map_or((arguments, None), |own| (own, Some(arguments)));
        hooks.push(hook(&method.function, true, first, inherited, errors));
    }
    if hooks.is_empty() {
        errors.push(
            block.impl_token.span,
            "no method of this block is a hook; one is `fn after_step(&mut self, cx: &mut Cx<AfterStep>)`",
        );
    }
    hooks
}

fn hook<'a>(
    function: &'a Function,
    in_block: bool,
    arguments: &'a Arguments,
    inherited: Option<&'a Arguments>,
    errors: &mut Errors,
) -> Hook<'a> {
    signature(function, in_block, errors);
    let name = &function.signature.ident;
    let point = match &arguments.point {
        Some(path) if path.leading_colon.is_some() || path.segments.len() > 1 => path.clone(),
        Some(path) => named(path.segments.last().map_or(name, |segment| &segment.ident), errors),
        None => named(name, errors),
    };
    let output = match &function.signature.output {
        ReturnType::Default => name.span(),
        ReturnType::Type(_, returned) => innermost(returned),
    };
    let context = context_of(function).map_or(name.span(), innermost);
    Hook { function, point, arguments, inherited, context, output }
}

/// The path of a bare name. One of another trainer's is told what it is called here, and stands for that.
fn named(name: &Ident, errors: &mut Errors) -> Path {
    match foreign::translate(&name.to_string()) {
        None => in_at(name),
        Some(ours) => {
            errors.push(name.span(), ours.message);
            in_at(&Ident::new(ours.point, name.span()))
        }
    }
}

/// `::trainer::at::<name>`, all of it on the user's own word.
fn in_at(name: &Ident) -> Path {
    let span = name.span();
    let library = quote_spanned!(span.resolved_at(Span::mixed_site())=> ::trainer::at::#name);
    syn::parse2(library).expect("a path of four words")
}

fn signature(function: &Function, in_block: bool, errors: &mut Errors) {
    let sig = &function.signature;
    if let Some(word) = &sig.constness {
        errors.push(word.span(), "a hook runs while training, so it cannot be `const`");
    }
    if let Some(word) = &sig.asyncness {
        errors.push(
            word.span(),
            "a hook runs between two steps of the loop, which does not await: remove `async`",
        );
    }
    if let syn::Safety::Unsafe(word) = &sig.safety {
        errors.push(
            word.span(),
            "the trainer cannot keep the promises of an `unsafe` function: wrap it in a safe one",
        );
    }
    if let Some(abi) = &sig.abi {
        errors.push(abi.span(), "a hook is called from Rust: remove `extern`");
    }
    if let Some(variadic) = &sig.variadic {
        errors.push(variadic.span(), "a hook takes its context alone");
    }
    if let Some(parameter) =
        sig.generics.params.iter().find(|it| !matches!(it, syn::GenericParam::Lifetime(_)))
    {
        errors.push(
            parameter.span(),
            "a hook is registered once, as it stands, so it cannot be generic; a generic type with a hook block can",
        );
    }

    let receiver = sig.receiver();
    match receiver {
        Some(receiver) if !in_block => {
            errors.push(receiver.span(), "a hook with `self` stands in an impl block that carries `#[hook]` itself, and is spelled `#[hook]` there");
        }
        Some(receiver) if matches!(receiver.kind, ReceiverKind::Value) => {
            errors.push(receiver.span(), "a hook is called many times: take `&mut self` or `&self`");
        }
        None if in_block => {
            errors.push(sig.ident.span(), "a hook of a block takes `&mut self` or `&self` first");
        }
        _ => {}
    }

    let arguments: Vec<_> =
        sig.inputs.iter().filter(|argument| matches!(argument, FnArg::Typed(_))).collect();
    let Some(first) = arguments.first() else {
        errors.push(
            sig.ident.span(),
            format!("a hook takes its context: `cx: &mut Cx<{}>`", example(&sig.ident)),
        );
        return;
    };
    for extra in &arguments[1..] {
        errors.push(extra.span(), "a hook takes its context alone");
    }
    let FnArg::Typed(first) = first else { return };
    match peeled(&first.ty) {
        Type::Reference(reference) if reference.mutability.is_some() => {}
        Type::Reference(reference) => {
            errors.push(reference.and_token.span(), "a hook takes its context by `&mut`");
        }
        Type::ImplTrait(written) => {
            errors.push(written.impl_token.span(), "a hook names its context: `&mut Cx<…>`, not `impl …`");
        }
        other if is_context(other) => {
            errors.push(innermost_path(other), "a hook takes its context by `&mut`");
        }
        other => errors.push(
            innermost_path(other),
            format!("a hook takes its context: `cx: &mut Cx<{}>`", example(&sig.ident)),
        ),
    }
}

/// `AfterStep` for `after_step`; for another name an ellipsis.
fn example(name: &Ident) -> String {
    let name = name.to_string();
    if !name.starts_with("before_") && !name.starts_with("after_") {
        return "…".into();
    }
    crate::lifecycle::pascal(&name)
}

fn takes_context(function: &Function) -> bool {
    context_of(function).is_some_and(is_context)
}

/// The type of the first argument after `self`.
fn context_of(function: &Function) -> Option<&Type> {
    function.signature.inputs.iter().find_map(|argument| match argument {
        FnArg::Typed(argument) => Some(&*argument.ty),
        FnArg::Receiver(_) => None,
    })
}

/// Without the invisible group that a macro's `$context:ty` makes.
fn peeled(written: &Type) -> &Type {
    match written {
        Type::Group(group) => peeled(&group.elem),
        Type::Paren(paren) => peeled(&paren.elem),
        other => other,
    }
}

fn is_context(written: &Type) -> bool {
    match peeled(written) {
        Type::Reference(reference) => is_context(&reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| segment.ident == "Cx"),
        _ => false,
    }
}

/// The last word of a type's innermost generic argument: what is most likely wrong about it.
fn innermost(written: &Type) -> Span {
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

/// The last word of a path, or the start of any other type.
fn innermost_path(written: &Type) -> Span {
    match peeled(written) {
        Type::Path(path) => path.path.segments.last().map_or_else(|| written.span(), |it| it.ident.span()),
        _ => written.span(),
    }
}
