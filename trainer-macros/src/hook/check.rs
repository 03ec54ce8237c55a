//! Every mistake that can be seen from the tokens alone. Names and types are rustc's to check.

use proc_macro2::{Ident, Span, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{FnArg, GenericArgument, Path, PathArguments, ReceiverKind, ReturnType, Type};

use super::arguments::Arguments;
use super::foreign;
use super::krate::Krate;
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
    /// The path of the marker of its point, or of the operation that it goes around.
    pub(super) moment: Path,
    /// For a hook around an operation: where a wrong `next` is reported.
    pub(super) next: Option<Span>,
    pub(super) arguments: &'a Arguments,
    /// The arguments of the block that it stands in, if it has its own besides.
    pub(super) inherited: Option<&'a Arguments>,
    pub(super) in_block: bool,
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
        Item::Function(function) => {
            only_on_blocks(arguments, errors);
            itself(&function.signature.ident.to_string(), arguments, errors);
            Checked::Free(hook(function, false, arguments, None, errors).into_iter().collect())
        }
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
    if let Some(operation) = &arguments.around {
        errors.push(
            operation.span(),
            "a block goes around nothing itself: `#[hook(around = …)]` stands on a method",
        );
    }
    if let Some(auto) = arguments.auto
        && block.is_generic()
    {
        errors.push(
            auto,
            "`auto` makes a value of one type, and this block is generic: remove it, and add values with `.hook(…)`",
        );
    }
    if let Some(lifetime) = borrowed(block) {
        errors.push(
            lifetime,
            "a hook lives as long as its trainer, so that its type cannot borrow: let it own its data, or borrow for `'static`",
        );
    }
    itself(&last_word(&block.self_type), arguments, errors);
    if let Some(point) = &arguments.point {
        errors.push(
            point.span(),
            "a block has no point of its own: its methods are named after points, or carry `#[hook(<point>)]`",
        );
    }
    let (mut hooks, mut any) = (Vec::new(), false);
    for member in &block.members {
        let Member::Method(method) = member else { continue };
        let name = &method.function.signature.ident;
        let is_hook = method.hook.is_some() || takes_context(&method.function);
        if let Some(own) = &method.hook {
            only_on_blocks(own, errors);
        }
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
        any = true;
        hooks.extend(hook(&method.function, true, first, inherited, errors));
    }
    if !any {
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
) -> Option<Hook<'a>> {
    // What a block says of itself there, it is told about.
    let of_block = in_block && inherited.is_none();
    let around = arguments.around.as_ref().filter(|_| !of_block);
    signature(function, in_block, around, errors);
    if around.is_none() && typed(function).nth(1).is_some_and(|second| is_named("Next", second)) {
        return None; // whose name need not be that of a point
    }
    let name = &function.signature.ident;
    let krate = Krate::of(inherited.unwrap_or(arguments));
    let full = |path: &Path| path.leading_colon.is_some() || path.segments.len() > 1;
    let moment = match around.or(arguments.point.as_ref()) {
        Some(path) if full(path) => path.clone(),
        Some(path) => named(path.segments.last().map_or(name, |segment| &segment.ident), &krate, errors),
        None => named(name, &krate, errors),
    };
    if let (Some(_), Some(point)) = (around, &arguments.point) {
        errors.push(point.span(), "a hook stands at a point or goes around an operation: one of the two");
    }
    let output = match &function.signature.output {
        ReturnType::Default => name.span(),
        ReturnType::Type(_, returned) => innermost(returned),
    };
    let context = context_of(function).map_or(name.span(), innermost);
    let next = around.map(|_| typed(function).nth(1).map_or(name.span(), innermost));
    Some(Hook { function, moment, next, arguments, inherited, in_block, context, output })
}

/// The lifetime that a block's type borrows for, if it is another than `'static`.
fn borrowed(block: &Block) -> Option<Span> {
    let declared = block.generics.lifetimes().next().map(|parameter| parameter.lifetime.span());
    let elided = || {
        let mut tokens = block.self_type.to_token_stream().into_iter().flat_map(flattened);
        tokens.find(|token| token.to_string() == "_").map(|token| token.span())
    };
    declared.or_else(elided)
}

/// The tokens of a token, those within it included.
fn flattened(token: TokenTree) -> Vec<TokenTree> {
    match token {
        TokenTree::Group(group) => group.stream().into_iter().flat_map(flattened).collect(),
        other => vec![other],
    }
}

/// What speaks of a value stands where the value's type does.
fn only_on_blocks(arguments: &Arguments, errors: &mut Errors) {
    for (key, span) in [("auto", arguments.auto), ("single", arguments.single)] {
        if let Some(span) = span {
            errors.push(span, format!("`{key}` goes on an impl block: only there the hook has a value"));
        }
    }
}

/// No hook runs before or after itself.
fn itself(name: &str, arguments: &Arguments, errors: &mut Errors) {
    for target in arguments.before.iter().chain(&arguments.after) {
        if target.path.get_ident().is_some_and(|word| word == name || word == "Self") {
            errors.push(target.path.span(), "a hook cannot run before or after itself");
        }
    }
}

/// The path of a bare name. One of another trainer's is told what it is called here, and stands for that.
fn named(name: &Ident, krate: &Krate<'_>, errors: &mut Errors) -> Path {
    match foreign::translate(&name.to_string()) {
        None => in_at(name, krate),
        Some(ours) => {
            errors.push(name.span(), ours.message);
            in_at(&Ident::new(ours.moment, name.span()), krate)
        }
    }
}

/// `::trainer::at::<name>`, all of it on the user's own word.
fn in_at(name: &Ident, krate: &Krate<'_>) -> Path {
    let span = name.span().resolved_at(Span::mixed_site());
    let krate = krate.at(span);
    syn::parse2(quote_spanned!(span=> #krate::at::#name)).expect("a path")
}

fn signature(function: &Function, in_block: bool, around: Option<&Path>, errors: &mut Errors) {
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
        errors.push(variadic.span(), "a hook is called with its context: it cannot be variadic");
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
    let further = &arguments[1..];
    match (around, further.first()) {
        (Some(operation), None) => {
            let operation =
                operation.segments.last().map(|it| crate::lifecycle::pascal(&it.ident.to_string()));
            let operation = operation.unwrap_or_default();
            errors.push(
                sig.ident.span(),
                format!(
                    "a hook around an operation takes what it goes around, too: `next: Next<{operation}>`"
                ),
            );
        }
        (Some(_), Some(FnArg::Typed(next))) => {
            if let Type::Reference(reference) = peeled(&next.ty) {
                errors.push(
                    reference.and_token.span(),
                    "a hook takes `next` by value: it goes on once at most",
                );
            }
        }
        (None, Some(FnArg::Typed(next))) if is_named("Next", &next.ty) => errors.push(
            next.span(),
            "`next` is for a hook around an operation: say which, `#[hook(around = backward)]`",
        ),
        _ => {}
    }
    let known = if around.is_some() { 2 } else { 1 };
    for extra in arguments.iter().skip(known) {
        let is_next = around.is_none() && matches!(extra, FnArg::Typed(it) if is_named("Next", &it.ty));
        if !is_next {
            let all = if around.is_some() { "its context and `next`" } else { "its context alone" };
            errors.push(extra.span(), format!("a hook takes {all}"));
        }
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
    typed(function).next()
}

/// The types of the arguments after `self`.
fn typed(function: &Function) -> impl Iterator<Item = &Type> {
    function.signature.inputs.iter().filter_map(|argument| match argument {
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
    is_named("Cx", written)
}

/// Is it a type of this name, or a reference to one?
fn is_named(name: &str, written: &Type) -> bool {
    match peeled(written) {
        Type::Reference(reference) => is_named(name, &reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| segment.ident == name),
        _ => false,
    }
}

/// The name of a type, without its path and parameters.
pub(super) fn last_word(written: &Type) -> String {
    let name = match peeled(written) {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.unraw().to_string()),
        _ => None,
    };
    name.unwrap_or_else(|| written.to_token_stream().to_string())
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
