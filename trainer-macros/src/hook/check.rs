//! Checks a parsed item together with its arguments. Mistakes within the arguments are reported
//! while they are parsed; rustc checks names and types.

use proc_macro2::{Ident, Span};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{GenericParam, Path, ReturnType, Type};

use super::arguments::{Arguments, Of, is_like_a_point, text_of};
use super::foreign;
use super::parse::{Block, Function, Item, Member, borrowed, is_foreign, peeled};
use super::signature::{
    context_of, innermost, is_named, last_word, main_of, marker_of, signature, takes_context, typed,
};
use crate::errors::Errors;
use crate::krate::Krate;
use crate::lifecycle::snake;

/// The checked hooks of an item.
pub(super) enum Checked<'a> {
    Free(Vec<Hook<'a>>),
    Block(&'a Block, Vec<Hook<'a>>),
}

/// A function or method that is a hook.
pub(super) struct Hook<'a> {
    pub(super) function: &'a Function,
    /// The path of the marker type of its point, or of the operation that it is around.
    pub(super) moment: Path,
    /// For a hook around an operation, the span at which a wrong `next` is reported.
    pub(super) next: Option<Span>,
    pub(super) arguments: &'a Arguments,
    /// The arguments of its block, if the method also has its own.
    pub(super) inherited: Option<&'a Arguments>,
    pub(super) in_block: bool,
    /// Whether it runs in the process of rank 0 only.
    pub(super) main_only: bool,
    /// Whether its signature is valid.
    sound: bool,
    /// The span at which a wrong context is reported: `AfterStep` in `&mut Cx<AfterStep>`.
    pub(super) context: Span,
    /// The span at which a wrong return type is reported.
    pub(super) output: Span,
}

impl Hook<'_> {
    /// Returns whether the hook's moment was probably meant as written, despite the mistakes. rustc
    /// then resolves its path too.
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
            errors.reserved(&function.signature.ident);
            only_on_blocks(arguments, errors);
            of_value_on_function(arguments, errors);
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
    match peeled(&block.self_type) {
        Type::TraitObject(_) => {
            errors.push(
                block.self_type.span(),
                "`#[hook]` goes on an `impl` block of a struct or an enum, not of a trait object",
            );
            return Vec::new();
        }
        foreign if is_foreign(foreign) => {
            errors.push(
                block.self_type.span(),
                "`#[hook]` goes on an `impl` block of a struct or an enum of this crate: wrap this type in a struct",
            );
            return Vec::new();
        }
        _ => {}
    }
    header(block, arguments, errors);
    let mut hooks = Vec::new();
    let mut any = false;
    for member in &block.members {
        let method = match member {
            Member::Method(method) => method,
            Member::Macro(path, _) => {
                errors.push(
                    path.span(),
                    "methods from a macro call cannot become hooks, because `#[hook]` sees the block before the call is \
                     expanded: write the methods by hand, or move the call to an `impl` block without `#[hook]`",
                );
                // Its expansion may contain hooks.
                any = true;
                continue;
            }
            Member::Other(_) => continue,
        };
        let name = &method.function.signature.ident;
        let is_hook = method.hook.is_some() || takes_context(&method.function);
        if let Some(own) = &method.hook {
            only_on_blocks(own, errors);
            errors.refuse(&own.krate, "`crate` goes on the `impl` block, where it applies to every method");
        }
        if !is_hook {
            let word = name.to_string();
            if is_like_a_point(&word) {
                errors.push(
                    name.span(),
                    format!(
                        "`{word}` is named like a hook but takes no `&mut Cx<…>` after `self`: \
                         add the context, or move the method to an `impl` block without `#[hook]`"
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
            "no method of this block is a hook: add one, as in `fn after_step(&mut self, cx: &mut Cx<AfterStep>)`",
        );
    }
    hooks
}

/// Reports mistakes in the header of a block: its type, its generics and the arguments on it.
fn header(block: &Block, arguments: &Arguments, errors: &mut Errors) {
    if let Type::Path(path) = peeled(&block.self_type)
        && let Some(name) = path.path.get_ident()
    {
        errors.reserved(name);
    }
    for parameter in &block.generics.params {
        match parameter {
            GenericParam::Type(parameter) => errors.reserved(&parameter.ident),
            GenericParam::Const(parameter) => errors.reserved(&parameter.ident),
            GenericParam::Lifetime(_) => {}
        }
    }
    errors.refuse(
        &arguments.around,
        "`around` goes on a method, not on the `impl` block: `#[hook(around = …)] fn …`",
    );
    if let Some(auto) = arguments.auto
        && block.is_generic()
    {
        errors.push(
            auto,
            "`auto` requires a concrete type, and this block is generic: remove `auto`, and add values with `.hook(…)`",
        );
    }
    if let Some(lifetime) = borrowed(block) {
        errors.push(
            lifetime,
            "a hook type cannot borrow, because its values live as long as the trainer: own the data, or borrow for `'static`",
        );
    }
    itself(&last_word(&block.self_type), arguments, errors);
    errors.refuse(
        &arguments.point,
        "a point goes on a method, not on the `impl` block: name the method after the point, or put `#[hook(<point>)]` on it",
    );
}

fn hook<'a>(
    function: &'a Function,
    in_block: bool,
    arguments: &'a Arguments,
    inherited: Option<&'a Arguments>,
    errors: &mut Errors,
) -> Option<Hook<'a>> {
    // `around` on a block is reported once, on the block.
    let of_block = in_block && inherited.is_none();
    let around = arguments.around.as_ref().filter(|_| !of_block);
    if arguments.around_failed && !of_block {
        return None; // the required signature is unknown
    }
    let sound = errors.none_in(|errors| signature(function, in_block, around, errors));
    if sound && around.is_some() && matches!(function.signature.output, syn::ReturnType::Default) {
        errors.push(
            function.signature.ident.span(),
            "a hook around an operation says how it ended: return `Result<Done>`, from `next.run(cx)`, \
             `next.replace(cx, …)` or `Ok(next.skip())`",
        );
    }
    if around.is_none() && typed(function).nth(1).is_some_and(|second| is_named("Next", second)) {
        return None; // it is around an operation, so its name need not be a point
    }
    let name = &function.signature.ident;
    let krate = Krate::of(inherited.unwrap_or(arguments).krate.as_ref());
    let moment = match around.or(arguments.point.as_ref()) {
        Some(path) if path.leading_colon.is_some() || path.segments.len() > 1 => path.clone(),
        Some(path) => {
            let module = if around.is_some() { "around" } else { "at" };
            named(path.segments.last().map_or(name, |segment| &segment.ident), module, &krate, errors)
        }
        None => {
            if let Some(point) = point_meant(function) {
                let helper =
                    if in_block { ", or move a helper to an `impl` block without `#[hook]`" } else { "" };
                // After another mistake, the meaning of the name is uncertain.
                if sound && !arguments.unclear {
                    errors.push(
                        name.span(),
                        format!(
                            "`{name}` is not a point in `trainer::at`: write the point, `#[hook({point})]`{helper}"
                        ),
                    );
                }
                return None;
            }
            named(name, "at", &krate, errors)
        }
    };
    if let (Some(_), Some(point)) = (around, &arguments.point) {
        errors
            .push(point.span(), "a hook is at a point or around an operation, not both: remove one of them");
    }
    let main_only =
        [Some(arguments), inherited].into_iter().flatten().any(|arguments| arguments.main_only.is_some());
    check_main_only(function, main_only, around, errors);
    let output = match &function.signature.output {
        ReturnType::Default => name.span(),
        ReturnType::Type(_, returned) => innermost(returned),
    };
    let context = context_of(function).map_or(name.span(), innermost);
    let next = around.map(|_| typed(function).nth(1).map_or(name.span(), innermost));
    Some(Hook { function, moment, next, arguments, inherited, in_block, main_only, sound, context, output })
}

/// Reports `main_only` on a hook around an operation, and `Cx<Main<…>>` on a hook that runs on all
/// ranks. rustc reports a `main_only` hook without `Main`.
fn check_main_only(function: &Function, main_only: bool, around: Option<&Path>, errors: &mut Errors) {
    if main_only && let Some(operation) = around {
        let name = text_of(operation);
        errors.push(
            operation.span(),
            format!(
                "a hook around `{name}` decides whether `{name}` runs, so it cannot run on rank 0 only: remove `main_only`, or \
                 use the points before and after `{name}`"
            ),
        );
    }
    if !main_only && let Some((word, marker)) = context_of(function).and_then(main_of) {
        errors.push(
            word,
            format!(
                "`Main` is for a hook that runs on rank 0 only: add `main_only` to `#[hook]`, or take `&mut Cx<{marker}>`"
            ),
        );
    }
}

/// Returns the point in a function's context type, if the function's name neither resembles a point
/// nor is a name of another framework.
fn point_meant(function: &Function) -> Option<String> {
    let name = function.signature.ident.unraw().to_string();
    let context = context_of(function).filter(|context| is_named("Cx", context)).map(marker_of)??;
    let point = snake(&context);
    let alike = strsim::jaro_winkler(&name, &point) > 0.8;
    let like_a_point = name.starts_with("before_") || name.starts_with("after_") || alike;
    (!like_a_point && foreign::translate(&name).is_none()).then_some(point)
}

/// Reports keys that are only valid on a block, because they apply to a value.
fn only_on_blocks(arguments: &Arguments, errors: &mut Errors) {
    let keys = [
        ("auto", arguments.auto),
        ("single", arguments.single),
        ("state", arguments.state.as_ref().map(|state| state.span)),
        ("settings", arguments.settings),
    ];
    for (key, span) in keys {
        if let Some(span) = span {
            errors.push(span, format!("`{key}` goes on an `impl` block, because a function has no value"));
        }
    }
}

/// Reports `of = self.…` on a function, which has no value.
fn of_value_on_function(arguments: &Arguments, errors: &mut Errors) {
    if let Some(of @ Of::Value(_)) = &arguments.of {
        errors.push(
            of.span(),
            "`of = self.…` needs a method: write the name of the module as a string, or make the function a method of a `#[hook] impl` block",
        );
    }
}

/// Reports `before` and `after` that name the hook itself.
fn itself(name: &str, arguments: &Arguments, errors: &mut Errors) {
    for target in arguments.before.iter().chain(&arguments.after) {
        if target.path.get_ident().is_some_and(|word| word == name || word == "Self") {
            errors.push(target.path.span(), "a hook cannot run before or after itself");
        }
    }
}

/// Returns the path for a bare name. A name of another framework is reported with its counterpart,
/// which then replaces it.
fn named(name: &Ident, module: &str, krate: &Krate<'_>, errors: &mut Errors) -> Path {
    let Some(ours) = foreign::translate(&name.to_string()) else { return within(module, name, krate) };
    errors.push(name.span(), ours.message);
    within("at", &Ident::new(ours.moment, name.span()), krate)
}

/// Returns `::trainer::<module>::<name>`, located on the user's own word.
fn within(module: &str, name: &Ident, krate: &Krate<'_>) -> Path {
    let span = name.span().resolved_at(Span::mixed_site());
    let krate = krate.at(span);
    let module = Ident::new(module, span);
    syn::parse2(quote_spanned!(span=> #krate::#module::#name)).expect("a path")
}
