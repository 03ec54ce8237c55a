//! Checks a parsed item together with its arguments. Mistakes within the arguments are reported
//! while they are parsed; rustc checks names and types.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{GenericParam, ReturnType, Type, WherePredicate};

use super::arguments::{Arguments, Moved};
use super::foreign;
use super::parse::{Block, Function, Item, Member, Method, borrowed, is_foreign, peeled};
use super::signature::{
    argument, context_of, innermost, innermost_path, is_named, last_word, main_of, marker_ident, marker_of,
    may_be_an_alias, next_of, signature, takes_context, typed,
};
use super::values::{Of, Only, is_of_value};
use super::words::is_like_a_point;
use crate::errors::Errors;
use crate::lifecycle::{pascal, snake};
use crate::moments::{is_marker, is_nearly_a_point, is_operation, is_point};

/// The checked hooks of an item.
pub(super) enum Checked<'a> {
    Free(Vec<Hook<'a>>),
    Block(&'a Block, Vec<Hook<'a>>),
}

/// A function or method that is a hook.
pub(super) struct Hook<'a> {
    pub(super) function: &'a Function,
    /// The type of the hook's context, without the reference. This type contains the hook's moment.
    pub(super) context: &'a Type,
    /// Whether the hook only observes: it takes `&Cx`, or has the key `observes`.
    pub(super) observes: bool,
    /// Whether the hook takes `&Cx`.
    pub(super) is_shared: bool,
    /// For a hook around an operation, the span at which a wrong `next` is reported.
    pub(super) next: Option<Span>,
    pub(super) arguments: &'a Arguments,
    /// The arguments of the hook's block, if the hook is a method that also has its own arguments.
    pub(super) inherited: Option<&'a Arguments>,
    pub(super) in_block: bool,
    /// The span at which a wrong context is reported: `AfterStep` in `&mut Cx<AfterStep>`.
    pub(super) at: Span,
    /// The span at which a wrong return type is reported.
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
            errors.reserved(&function.signature.ident);
            only_on_blocks(arguments, "because a function has no value", errors);
            value_on_function(arguments, errors);
            itself(&function.signature.ident.to_string(), arguments, errors);
            Checked::Free(hook(function, false, arguments, None, errors).into_iter().collect())
        }
        Item::Block(item) => Checked::Block(item, block(item, arguments, errors)),
        // rustc reports an attribute on a statement.
        Item::Other(word, _) if word == "let" => Checked::Free(Vec::new()),
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
    let called = called(block, errors);
    let mut hooks = Vec::new();
    // Whether a method is a hook, or is reported as one.
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
        if let Some(own) = &method.hook {
            only_on_blocks(own, "not on a method", errors);
            errors.refuse(&own.krate, "`crate` goes on the `impl` block, where it applies to every method");
        }
        if !is_hook(method) {
            any |= no_hook(&method.function, errors);
            continue;
        }
        if called.contains(&&method.function.signature.ident) {
            any = true;
            continue;
        }
        let (first, inherited) = method.hook.as_ref().map_or((arguments, None), |own| (own, Some(arguments)));
        any = true;
        hooks.extend(hook(&method.function, true, first, inherited, errors));
    }
    if !any {
        no_hooks(block, errors);
    }
    if let Some(word) = arguments.observes
        && any
        && !hooks.iter().any(|hook| hook.next.is_some())
    {
        errors.push(
            word,
            "`observes` is for hooks around an operation, but this block has none: to only observe at a point, take `&Cx<…>`",
        );
    }
    unbounded(block, &hooks, errors);
    hooks
}

/// Returns whether a method of a block is a hook.
pub(super) fn is_hook(method: &Method) -> bool {
    method.hook.is_some() || takes_context(&method.function)
}

/// Reports a block without a hook, at the argument that is probably meant to be the context.
fn no_hooks(block: &Block, errors: &mut Errors) {
    let methods = block.members.iter().filter_map(|member| match member {
        Member::Method(method) if method.function.signature.receiver().is_some() => Some(&method.function),
        _ => None,
    });
    for function in methods {
        if let Some(late) = typed(function).skip(1).find(|written| is_named("Cx", written)) {
            return errors.push(late.span(), "a hook takes its context as the first argument after `self`");
        }
        let Some(first) = context_of(function).map(peeled) else { continue };
        let (first, help) = match first {
            Type::Reference(reference) => {
                (&*reference.elem, "an alias of a context type, add `#[hook]` to the method")
            }
            // A hook with an alias of a whole reference is not recognized even with `#[hook]`.
            first => (
                first,
                "an alias of a reference to a context, write that reference in the method, `&Cx<…>` or `&mut Cx<…>`",
            ),
        };
        if may_be_an_alias(first) {
            return errors.push(
                innermost_path(first),
                format!("no method of this block is a hook: if this type is {help}"),
            );
        }
    }
    errors.push(
        block.impl_token.span,
        "no method of this block is a hook: add one, as in `fn after_step(&mut self, cx: &mut Cx<AfterStep>)`",
    );
}

/// Reports a moment that is an unbounded type parameter of the block.
fn unbounded(block: &Block, hooks: &[Hook<'_>], errors: &mut Errors) {
    for parameter in block.generics.type_params().filter(|parameter| parameter.bounds.is_empty()) {
        let name = &parameter.ident;
        let of = |hook: &&Hook<'_>| marker_ident(hook.context).is_some_and(|marker| marker == *name);
        let in_clause = block.generics.where_clause.iter().flat_map(|clause| &clause.predicates);
        let is_bounded = in_clause.into_iter().any(|predicate| match predicate {
            WherePredicate::Type(predicate) => *name == last_word(&predicate.bounded_ty),
            _ => false,
        });
        let Some(hook) = hooks.iter().find(of).filter(|_| !is_bounded) else { continue };
        let bound = if hook.next.is_some() { "AtOperation" } else { "AtPoint" };
        errors.push(
            name.span(),
            format!(
                "`{name}` is the moment of a hook and needs the bound `{bound}`: `use trainer::moment::{bound};`"
            ),
        );
    }
}

/// Reports a method that is named like a point, here or in another framework, but is not a hook.
/// Returns whether the method was reported.
fn no_hook(function: &Function, errors: &mut Errors) -> bool {
    let name = &function.signature.ident;
    let word = name.unraw().to_string();
    let theirs =
        (word.starts_with("on_") || is_like_a_point(&word)).then(|| foreign::translate(&word)).flatten();
    let message = match theirs {
        Some(ours) => format!(
            "{}, which a hook takes after `self`: `cx: &mut Cx<{}>`",
            ours.message(&word),
            ours.marker
        ),
        None if is_nearly_a_point(&word) => format!(
            "`{word}` is named like a hook but takes no `&mut Cx<…>` after `self`: \
             add the context, or move the method to an `impl` block without `#[hook]`"
        ),
        None => return false,
    };
    errors.push(name.span(), message);
    true
}

/// Reports the calls of a hook by other methods of its block. Such a hook was meant to be a helper,
/// but became a hook because it takes a context. Returns the names of these hooks.
fn called<'a>(block: &'a Block, errors: &mut Errors) -> Vec<&'a Ident> {
    let methods = || {
        block.members.iter().filter_map(|member| match member {
            Member::Method(method) => Some(&**method),
            _ => None,
        })
    };
    let hooks: Vec<_> = methods().filter(|method| is_hook(method)).collect();
    let hooks: Vec<_> = hooks.iter().map(|method| &method.function.signature.ident).collect();
    let mut called = Vec::new();
    for method in methods() {
        calls(method.function.body.clone(), &hooks, &mut called, errors);
    }
    called
}

/// Reports each `self.name(…)` or `Self::name(…)` that calls a hook, and adds the hook to `called`.
fn calls<'a>(tokens: TokenStream, hooks: &[&'a Ident], called: &mut Vec<&'a Ident>, errors: &mut Errors) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (nth, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            calls(group.stream(), hooks, called, errors);
        }
        let TokenTree::Ident(name) = token else { continue };
        let before: Vec<String> = tokens[..nth].iter().rev().take(3).map(ToString::to_string).collect();
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let is_method = before.starts_with(&[".", "self"]) || before == [":", ":", "Self"];
        let is_called = tokens.get(nth + 1).is_some_and(|next| next.to_string().starts_with(['(', ':']));
        if is_method
            && is_called
            && let Some(hook) = hooks.iter().find(|hook| **hook == name)
        {
            called.push(*hook);
            errors.push(
                name.span(),
                format!(
                    "`{name}` takes a context, so it is a hook, and only the trainer calls hooks: move a helper, or code that both \
                     need, to an `impl` block without `#[hook]`"
                ),
            );
        }
    }
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
    for (span, moved) in &arguments.moved {
        errors.push(*span, message_of_moved(moved, None));
    }
    if let Some(auto) = arguments.auto
        && block.is_generic()
    {
        errors.push(
            auto,
            "`auto` requires a concrete type, and this block is generic: remove `auto`, and add values with `.hook(…)`",
        );
    }
    if let Some(more) = arguments.more {
        further_block(block, arguments, more, errors);
    }
    if let Some(lifetime) = borrowed(block) {
        errors.push(
            lifetime,
            "a hook type cannot borrow, because its values live as long as the trainer: own the data, or borrow for `'static`",
        );
    }
    itself(&last_word(&block.self_type), arguments, errors);
}

fn hook<'a>(
    function: &'a Function,
    in_block: bool,
    arguments: &'a Arguments,
    inherited: Option<&'a Arguments>,
    errors: &mut Errors,
) -> Option<Hook<'a>> {
    let written = context_of(function);
    // The words of a block are reported once, on the block.
    if !in_block || inherited.is_some() {
        for (span, moved) in &arguments.moved {
            errors.push(*span, message_of_moved(moved, Some(function)));
        }
    }
    let is_sound = errors.none_in(|errors| {
        signature(function, in_block, errors);
        moment(function, arguments, errors);
    });
    let name = &function.signature.ident;
    let next = next_of(function).map(innermost);
    if is_sound
        && next.is_none()
        && let Some(done) = done_of(function)
    {
        errors.push(
            done,
            "a hook at a point returns `()` or `Result<()>`: `Done` is for hooks around an operation, which take `next: Next<…>`",
        );
        return None;
    }
    if is_sound && next.is_some() && matches!(function.signature.output, ReturnType::Default) {
        errors.push(
            name.span(),
            "a hook around an operation reports how the operation ended: return `Result<Done>`, from `next.run(cx)`, \
             `next.replace(cx, …)` or `Ok(next.skip())`",
        );
    }
    let Some(Type::Reference(reference)) = written.map(peeled) else { return None };
    if next.is_none()
        && let Some(word) = arguments.observes
        && (!in_block || inherited.is_some())
    {
        errors.push(
            word,
            "`observes` is for a hook around an operation: to only observe at a point, take `&Cx<…>`",
        );
    }
    let flagged = [Some(arguments), inherited].into_iter().flatten().any(|all| all.observes.is_some());
    let observes = reference.mutability.is_none() || next.is_some() && flagged;
    if let Some(word) = arguments.may_fail.or_else(|| inherited.and_then(|block| block.may_fail))
        && !observes
    {
        // The key of a block concerns its other methods too.
        let is_of_block = in_block && (inherited.is_none() || arguments.may_fail.is_none());
        let own = if is_of_block { reference.span() } else { word };
        let how = if next.is_some() { "add the key `observes`" } else { "take `&Cx<…>`" };
        errors.push(
            own,
            format!("`may_fail` is for a hook that only observes, because its failure must not change training: {how}"),
        );
    }
    let output = match &function.signature.output {
        ReturnType::Default => name.span(),
        ReturnType::Type(_, returned) if is_named("Result", returned) => innermost(returned),
        ReturnType::Type(_, returned) => innermost_path(returned),
    };
    Some(Hook {
        function,
        context: &reference.elem,
        observes,
        is_shared: reference.mutability.is_none(),
        next,
        arguments,
        inherited,
        in_block,
        at: innermost(&reference.elem),
        output,
    })
}

/// Returns the span of `Done` in the return type of a function.
pub(super) fn done_of(function: &Function) -> Option<Span> {
    let ReturnType::Type(_, returned) = &function.signature.output else { return None };
    let done = argument(returned).filter(|done| is_named("Done", done) && is_named("Result", returned))?;
    Some(innermost(done))
}

/// Returns the message about a word that belongs in the signature of a hook, as a type. `function`
/// is the hook; it is `None` if the word is on a block.
fn message_of_moved(moved: &Moved, function: Option<&Function>) -> String {
    let context = function.and_then(context_of).filter(|context| is_named("Cx", context));
    let marker = context.and_then(marker_of);
    let with =
        |wanted: String, is_there: bool| if is_there { String::new() } else { format!(", and {wanted}") };
    match moved {
        Moved::Point(written, wanted) => {
            let is_there = wanted.is_some() && *wanted == marker;
            let help = match wanted {
                Some(wanted) if is_operation(&snake(wanted)) && function.and_then(next_of).is_none() => {
                    format!("take `&mut Cx<Before{wanted}>` or `&mut Cx<After{wanted}>`")
                }
                Some(wanted) => format!("take `&mut Cx<{wanted}>`"),
                None => "write the moment in that type, as in `&mut Cx<AfterStep>`".into(),
            };
            let is_there = is_there || wanted.is_none() && marker.is_some();
            format!(
                "the type of the context says when a hook runs: remove `{written}`{}",
                with(help, is_there)
            )
        }
        Moved::Around(written, wanted) => {
            let is_there = function.and_then(next_of).is_some() && (wanted.is_none() || *wanted == marker);
            let operation = wanted.as_deref().unwrap_or("…");
            let help = format!("take `cx: &mut Cx<{operation}>, next: Next<{operation}>`");
            format!(
                "the types of the arguments say when a hook runs: remove `{written}`{}",
                with(help, is_there)
            )
        }
        Moved::MainOnly(written) if function.and_then(next_of).is_some() => {
            let operation = marker.as_deref().map_or_else(|| "…".into(), snake);
            format!(
                "a hook around `{operation}` decides whether `{operation}` runs, so it cannot run on rank 0 only: remove `{written}`, or \
                 use the points before and after `{operation}`"
            )
        }
        Moved::MainOnly(written) => {
            let is_there = context.and_then(main_of).is_some();
            let point = marker.as_deref().unwrap_or("…");
            let help = format!("take `&Cx<Main<{point}>>`");
            format!(
                "the type of the context says where a hook runs: remove `{written}`{}",
                with(help, is_there)
            )
        }
    }
}

/// Reports a moment of another framework, a function that is named like a point but runs at a
/// different one, and `Main` around an operation. rustc resolves the names.
fn moment(function: &Function, arguments: &Arguments, errors: &mut Errors) {
    let Some(context) = context_of(function).filter(|context| is_named("Cx", context)) else { return };
    let Some(marker) = marker_of(context) else { return };
    if let Some((word, _)) = main_of(context)
        && next_of(function).is_some()
    {
        let name = snake(&marker);
        errors.push(
            word,
            format!(
                "a hook around `{name}` decides whether `{name}` runs, so it cannot run on rank 0 only: remove `Main`, or \
                 use the points before and after `{name}`"
            ),
        );
    }
    if let Some((word, ours)) = theirs(context) {
        let message = ours.message(&word.to_string());
        errors.push(
            word.span(),
            format!("{message}; a custom moment with this name needs its full path, starting with `self` or `crate`"),
        );
        return;
    }
    if let Some(next) = next_of(function)
        && let Some(other) = argument(next).map(last_word)
        && other != marker
        && [&marker, &other].into_iter().all(|word| is_operation(&snake(word)))
    {
        errors.push(
            innermost(next),
            format!("a hook around `{marker}` takes `Next<{marker}>`, not `Next<{other}>`"),
        );
        return;
    }
    kind(context, &marker, function, arguments, errors);
    let name = &function.signature.ident;
    let word = name.unraw().to_string();
    if is_point(&word) && is_marker(&marker) && pascal(&word) != marker {
        let observes =
            matches!(peeled(context), Type::Reference(reference) if reference.mutability.is_none());
        let reference = if observes { "&" } else { "&mut " };
        let named = pascal(&word);
        let named = if main_of(context).is_some() { format!("Main<{named}>") } else { named };
        errors.push(
            name.span(),
            format!(
                "`{word}` is the name of a point, but this hook is at `{marker}`: rename the hook, or take `{reference}Cx<{named}>`"
            ),
        );
    }
}

/// Reports a hook at an operation of the trainer without a `next` argument, and a hook at a point
/// with a `next` argument.
fn kind(context: &Type, marker: &str, function: &Function, arguments: &Arguments, errors: &mut Errors) {
    let Some(word) = marker_ident(context) else { return };
    let name = snake(marker);
    let next = next_of(function);
    // A second argument of another type is reported, and so is `around = backward`.
    let says_around = arguments.moved.iter().any(|(_, moved)| matches!(moved, Moved::Around(..)));
    if is_operation(&name) && typed(function).count() == 1 && !says_around {
        errors.push(
            word.span(),
            format!(
                "`{word}` is an operation, not a point: use `Before{word}` or `After{word}`, or take `next: Next<{word}>`, \
                 to make this a hook around the operation"
            ),
        );
    }
    if is_point(&name)
        && let Some(next) = next
    {
        let operation = marker.strip_prefix("Before").or(marker.strip_prefix("After"));
        let operation = operation.filter(|operation| is_operation(&snake(operation)));
        let instead = operation.map_or_else(String::new, |operation| {
            format!(", or take `cx: &mut Cx<{operation}>, next: Next<{operation}>`")
        });
        errors.push(
            innermost(next),
            format!(
                "`{word}` is a point, not an operation, so its hooks take no `next`: remove the argument{instead}"
            ),
        );
    }
}

/// If the marker in a context is a name of another framework, such as `OnTrainEnd`, returns the
/// marker and its counterpart in this crate.
pub(super) fn theirs(context: &Type) -> Option<(Ident, foreign::Ours)> {
    let word = marker_ident(context)?;
    if is_marker(&word.to_string()) {
        return None;
    }
    let ours = foreign::translate_marker(&word.to_string())?;
    Some((word, ours))
}

/// Reports keys that are only valid on a block, because they apply to the hook's value.
fn only_on_blocks(arguments: &Arguments, why: &str, errors: &mut Errors) {
    for (key, span) in of_value_keys(arguments).into_iter().chain([("more", arguments.more)]) {
        if let Some(span) = span {
            errors.push(span, format!("`{key}` goes on an `impl` block, {why}"));
        }
    }
}

/// Reports keys with a value `self.…` on a function, which has no value.
fn value_on_function(arguments: &Arguments, errors: &mut Errors) {
    let mut report = |key: &str, span: Span, help: &str| {
        errors.push(
            span,
            format!(
                "`{key} = self.…` needs a method: {help}, or make the function a method of a `#[hook] impl` block"
            ),
        );
    };
    if let Some(of @ Of::Value(_)) = &arguments.of {
        report("of", of.span(), "write the name of the module as a string");
    }
    if let Some(Only::Value(value)) = &arguments.only {
        report("only", value.span(), "write the phases");
    }
    if let Some((value, _)) = arguments.every.as_ref().filter(|(value, _)| is_of_value(value)) {
        report("every", value.span(), "write a number");
    }
}

/// Reports keys and forms that a block with `more` cannot have.
fn further_block(block: &Block, arguments: &Arguments, more: Span, errors: &mut Errors) {
    if block.is_generic() {
        errors.push(
            more,
            "`more` requires a concrete type, and this block is generic: move its hooks to the other block of the type",
        );
    }
    for (key, span) in of_value_keys(arguments) {
        if let Some(span) = span {
            errors.push(
                span,
                format!("`{key}` applies to the values of the type: write it on the block without `more`"),
            );
        }
    }
}

/// Returns the keys that apply to the values of a type.
fn of_value_keys(arguments: &Arguments) -> [(&'static str, Option<Span>); 5] {
    [
        ("auto", arguments.auto),
        ("single", arguments.single),
        ("state", arguments.state.as_ref().map(|state| state.span)),
        ("settings", arguments.settings),
        ("variables", arguments.variables),
    ]
}

/// Reports `before` and `after` that name the hook itself.
fn itself(name: &str, arguments: &Arguments, errors: &mut Errors) {
    for target in arguments.before.iter().chain(&arguments.after) {
        if target.path.get_ident().is_some_and(|word| word == name || word == "Self") {
            errors.push(target.path.span(), "a hook cannot run before or after itself");
        }
        if arguments.sets.contains(&target.path) {
            errors.push(target.path.span(), "a hook cannot run before or after a set that it is in");
        }
    }
}
