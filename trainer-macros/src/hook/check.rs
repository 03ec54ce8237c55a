//! Every mistake that can be seen from the tokens alone. Names and types are rustc's to check.

use proc_macro2::{Ident, Span, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Path, ReturnType, Type};

use super::arguments::{Arguments, is_like_a_point};
use super::foreign;
use super::parse::{Block, Function, Item, Member};
use super::signature::{
    context_of, innermost, is_named, last_word, marker_of, signature, takes_context, typed,
};
use crate::errors::Errors;
use crate::krate::Krate;
use crate::lifecycle::snake;

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
    /// Its signature is that of a hook.
    sound: bool,
    /// Where a wrong context is reported: on `AfterStep` in `&mut Cx<AfterStep>`.
    pub(super) context: Span,
    /// Where a wrong return type is reported.
    pub(super) output: Span,
}

impl Hook<'_> {
    /// Is its name meant to be that of a point, as far as one can tell after a mistake?
    pub(super) fn is_clear(&self) -> bool {
        let name = self.function.signature.ident.to_string();
        let like_a_point = name.starts_with("before_") || name.starts_with("after_");
        like_a_point || !self.arguments.unclear && self.sound
    }
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
    if let Some(what) = unsized_or_foreign(&block.self_type) {
        errors.push(
            block.self_type.span(),
            format!("`#[hook]` goes on an `impl` block of a struct or an enum, not of {what}"),
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
        let method = match member {
            Member::Method(method) => method,
            Member::Macro(path, _) => {
                errors.push(
                    path.span(),
                    "methods from a macro call cannot become hooks, because `#[hook]` sees the block before the call is \
                     expanded: write the methods out, or move the call to an `impl` block without `#[hook]`",
                );
                // What it would have given may be a hook.
                any = true;
                continue;
            }
            Member::Other(_) => continue,
        };
        let name = &method.function.signature.ident;
        let is_hook = method.hook.is_some() || takes_context(&method.function);
        if let Some(own) = &method.hook {
            only_on_blocks(own, errors);
            if let Some(path) = &own.krate {
                errors.push(path.span(), "`crate` goes on the impl block, where it holds for every method");
            }
        }
        if !is_hook {
            let word = name.to_string();
            if is_like_a_point(&word) {
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
    if arguments.around_failed && !of_block {
        return None; // what its signature must be is not known
    }
    let sound = errors.none_in(|errors| signature(function, in_block, around, errors));
    if around.is_none() && typed(function).nth(1).is_some_and(|second| is_named("Next", second)) {
        return None; // whose name need not be that of a point
    }
    let name = &function.signature.ident;
    let krate = Krate::of(inherited.unwrap_or(arguments).krate.as_ref());
    let full = |path: &Path| path.leading_colon.is_some() || path.segments.len() > 1;
    let moment = match around.or(arguments.point.as_ref()) {
        Some(path) if full(path) => path.clone(),
        Some(path) => {
            let module = if around.is_some() { "around" } else { "at" };
            named(path.segments.last().map_or(name, |segment| &segment.ident), module, &krate, errors)
        }
        None => {
            if let Some(point) = point_meant(function) {
                let helper = if in_block { "; a helper goes into another impl block" } else { "" };
                // After another mistake it is not sure what the name was meant for.
                if sound && !arguments.unclear {
                    errors.push(
                        name.span(),
                        format!(
                            "`{name}` names no point of `trainer::at`: say which, `#[hook({point})]`{helper}"
                        ),
                    );
                }
                return None;
            }
            named(name, "at", &krate, errors)
        }
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
    Some(Hook { function, moment, next, arguments, inherited, in_block, sound, context, output })
}

/// The point that a function is meant for, by its context, if its name is not even like that of one.
fn point_meant(function: &Function) -> Option<String> {
    let name = function.signature.ident.unraw().to_string();
    let context = context_of(function).filter(|context| is_named("Cx", context)).map(marker_of)??;
    let point = snake(&context);
    let alike = strsim::jaro_winkler(&name, &point) > 0.8;
    let like_a_point = name.starts_with("before_") || name.starts_with("after_") || alike;
    (!like_a_point && foreign::translate(&name).is_none()).then_some(point)
}

/// What a block's type is, if no value of it can be a hook.
pub(super) fn unsized_or_foreign(written: &Type) -> Option<&'static str> {
    match written {
        Type::Group(group) => unsized_or_foreign(&group.elem),
        Type::Paren(paren) => unsized_or_foreign(&paren.elem),
        Type::TraitObject(_) => Some("a trait object"),
        Type::Slice(_) => Some("a slice"),
        _ => None,
    }
}

/// The lifetime that a block's type borrows for, if it is another than `'static`.
pub(super) fn borrowed(block: &Block) -> Option<Span> {
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
    for (key, span) in [("auto", arguments.auto), ("single", arguments.single), ("state", arguments.state)] {
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
fn named(name: &Ident, module: &str, krate: &Krate<'_>, errors: &mut Errors) -> Path {
    match foreign::translate(&name.to_string()) {
        None => within(module, name, krate),
        Some(ours) => {
            errors.push(name.span(), ours.message);
            within("at", &Ident::new(ours.moment, name.span()), krate)
        }
    }
}

/// `::trainer::<module>::<name>`, all of it on the user's own word.
fn within(module: &str, name: &Ident, krate: &Krate<'_>) -> Path {
    let span = name.span().resolved_at(Span::mixed_site());
    let (krate, module) = (krate.at(span), Ident::new(module, span));
    syn::parse2(quote_spanned!(span=> #krate::#module::#name)).expect("a path")
}
