//! Expands checked hooks to their registrations.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, FnArg, Generics, Type};

use super::arguments::Arguments;
use super::check::{Checked, Hook, is_hook};
use super::parse::{Block, Function, Member, flattened, is_foreign, peeled};
use super::reads::{Read, reads};
use super::signature::{innermost_path, last_word, main_of, marker_of, takes_mut_self};
use super::values::{AutoIf, Of, Only, SavedState, Target, first_word, is_of_value, text_of};
use crate::krate::Krate;
use crate::moments::is_marker;

/// Expands to the registrations. `arguments` are those of the item's attribute, not of a method in
/// a block.
pub(super) fn expand(checked: &Checked<'_>, arguments: &Arguments, is_own: bool) -> TokenStream {
    let krate = Krate::of(arguments.krate.as_ref());
    let registration = match checked {
        Checked::Free(hooks) => hooks.iter().map(|hook| free(hook, &krate, is_own)).collect(),
        Checked::Block(item, hooks) => block(item, hooks, arguments, &krate, is_own),
    };
    let import = krate.import();
    let allowed: TokenStream = match checked {
        Checked::Free(hooks) => hooks.iter().map(|hook| hook.function.allowed()).collect(),
        Checked::Block(block, _) => block.allowed(),
    };
    // The constant has a name, because the function may be in an `impl` block, by mistake: rustc
    // then only reports that there is no such function.
    let name = match checked {
        Checked::Free(hooks) => hooks.first().map(|hook| {
            let name = &hook.function.signature.ident;
            Ident::new(&format!("__HOOK_{}", name.unraw()), Span::call_site())
        }),
        Checked::Block(..) => None,
    };
    let allowed_name = name.as_ref().map(|_| quote!(#[allow(non_upper_case_globals)]));
    let name = name.map_or_else(|| quote!(_), ToTokens::into_token_stream);
    quote! {
        #allowed
        #allowed_name
        const #name: () = { #import #registration };
    }
}

fn free(hook: &Hook<'_>, krate: &Krate<'_>, is_own: bool) -> TokenStream {
    let name = &hook.function.signature.ident;
    let trainer = krate.at(Span::call_site());
    let shim = Ident::new("__shim", name.span());
    // Named as a value here too, so that rustc reports a missing function once.
    let body = body(hook, krate, |arguments| {
        quote!({
            let __hook = #name;
            __hook(#arguments)
        })
    });
    // The path of a function is its module and its name.
    let origin = origin(&quote!(""), krate, is_own);
    let definition = definition(hook, &quote!(#shim), None, krate);
    let rest = hook.next.map(|_| quote!(__rest: #trainer::__private::Rest<'_>,));
    // The definition repeats the type of the context, and so does the shim if there is a `when`.
    // rustc drops the second of two equal errors. Errors about the type in two functions are equal
    // if the names of the functions have the same location.
    let define = Ident::new("__definition", name.span());
    // A named function compiles faster than a closure.
    quote! {
        fn #shim(
            __run: &mut #trainer::__private::Run,
            _: ::core::primitive::u32,
            #rest
        ) -> #trainer::__private::HookResult {
            #body
        }
        fn #define() -> #trainer::__private::Definitions {
            let mut __hooks = #trainer::__private::Definitions::of_function(#origin, &#name);
            #definition
            __hooks
        }
        #trainer::__private::inventory::submit! { #trainer::__private::Discovered(#define) }
    }
}

fn block(
    block: &Block,
    hooks: &[Hook<'_>],
    arguments: &Arguments,
    krate: &Krate<'_>,
    is_own: bool,
) -> TokenStream {
    let trainer = krate.at(Span::call_site());
    let self_type = &block.self_type;
    let origin = origin(&path_of(&last_word(self_type)), krate, is_own);
    let definitions = hooks.iter().enumerate().map(|(index, hook)| method(hook, index, krate));
    let begin =
        Ident::new(if block.is_generic() { "of_generic_block" } else { "of_block" }, Span::call_site());
    let single = arguments.single.map(|_| {
        let of = arguments.single_of.as_ref().map_or_else(|| quote!(Self), ToTokens::to_token_stream);
        quote!(
            const SINGLE: ::core::option::Option<::core::any::TypeId> =
                ::core::option::Option::Some(::core::any::TypeId::of::<#of>());
        )
    });
    // Each is located on its word, where rustc reports a type that does not have it.
    let mut extras = Vec::new();
    let mut add = |key: &str, of: &str, word: Span, of_field: bool| {
        let here = krate.at(ours(word));
        let of = Ident::new(of, ours(word));
        let from = match of_field {
            true => quote_spanned!(ours(word)=> of_field::<Self, __Block>),
            false => quote_spanned!(ours(word)=> of::<Self>),
        };
        let value = quote_spanned!(ours(word)=> #here::__private::#of::#from());
        let key = Ident::new(key, Span::call_site());
        extras.push(quote!(.#key(#value)));
    };
    if let Some(state) = &arguments.state {
        add("state", "StateOf", state.span, state.field.is_some());
    }
    arguments.settings.into_iter().for_each(|word| add("settings", "SettingsOf", word, false));
    arguments.variables.into_iter().for_each(|word| add("variables", "VariablesOf", word, false));
    let extras = (!extras.is_empty()).then(|| {
        quote!(
            const EXTRAS: #trainer::__private::Extras = #trainer::__private::Extras::NONE #(#extras)*;
        )
    });
    let changes = hooks.iter().any(|hook| takes_mut_self(&hook.function.signature)).then(|| {
        quote!(
            const CHANGES: ::core::primitive::bool = true;
        )
    });
    let state_of_field = arguments.state.as_ref().and_then(|state| state_of_field(state, krate));
    let linked = match arguments.auto {
        _ if let Some(more) = arguments.more => {
            let here = krate.at(ours(more));
            // Located on the word `more`, where rustc reports a type without another block.
            quote_spanned!(ours(more)=> #here::__private::MoreHooks::new::<#self_type, __Block>())
        }
        _ if block.is_generic() => quote!(#trainer::__private::HookImpl::generic(__ORIGIN)),
        None => quote!(#trainer::__private::HookImpl::new::<#self_type>(__ORIGIN)),
        Some(auto) => {
            let here = krate.at(ours(auto));
            // Located on the word `auto`, where rustc reports a type without `Default`.
            let maker = quote_spanned!(ours(auto)=> #here::__private::HookImpl::auto::<__Self>);
            let when = match &arguments.auto_if {
                None => quote!(Always),
                Some(AutoIf::Ranks) => quote!(OnRanks),
                Some(AutoIf::Path(path)) => quote!(If(#path)),
            };
            quote!({ type __Self = #self_type; #maker(__ORIGIN, #trainer::__private::AutoWhen::#when) })
        }
    };
    let selected = selected(hooks, krate);
    let helpers = helpers(block, krate);
    let calls = calls(hooks, krate);
    let implementation = implement(
        block,
        arguments,
        krate,
        &quote! {
            fn __hooks() -> #trainer::__private::Definitions {
                let mut __hooks = #trainer::__private::Definitions::#begin::<Self>(__ORIGIN);
                #(#definitions)*
                __hooks
            }
            #single
            #extras
            #changes
            #selected
            #calls
            #state_of_field
        },
    );
    quote! {
        const __ORIGIN: #trainer::__private::Origin = #origin;
        #implementation
        #helpers
        #trainer::__private::inventory::submit! { #linked }
    }
}

/// Expands to the impl of `Hooks` with these items, and to the type that distinguishes the block
/// from the other blocks of the hook type.
pub(super) fn implement(
    block: &Block,
    arguments: &Arguments,
    krate: &Krate<'_>,
    items: &TokenStream,
) -> TokenStream {
    let trainer = krate.at(Span::call_site());
    let generics = bounded(block);
    let (generics, _, clause) = generics.split_for_impl();
    // As for a function, located so that errors about the types are equal.
    let Block { impl_token, self_type, .. } = block;
    // rustc reports a type that is not `Send` at the first impl. The second only assumes it.
    let mut assumed = bounded(block);
    if arguments.more.is_none() && !block.is_generic() {
        let send = syn::parse_quote!(for<'__send> #self_type: ::core::marker::Send);
        assumed.make_where_clause().predicates.push(send);
    }
    let assumed = &assumed.where_clause;
    let first = arguments.more.is_none().then(|| {
        quote! {
            #[diagnostic::do_not_recommend]
            #impl_token #generics #trainer::__private::FurtherBlocksNeedHookMore for #self_type #clause {
                type Block = __Block;
            }
        }
    });
    quote! {
        pub enum __Block {}
        #first
        #[diagnostic::do_not_recommend]
        #impl_token #generics #trainer::__private::Hooks<__Block> for #self_type #assumed { #items }
    }
}

/// Expands to a function that evaluates the keys `of = self.<…>`, `every = self.<…>` and
/// `only = self.<…>` of the method with a given index.
fn selected(hooks: &[Hook<'_>], krate: &Krate<'_>) -> Option<TokenStream> {
    let trainer = krate.at(Span::call_site());
    let mut receiver = None;
    let mut arms = Vec::new();
    for (index, hook) in hooks.iter().enumerate() {
        let keys: Vec<TokenStream> = of_value(hook)
            .map(|(key, value)| {
                // The user's own `self`, so that it resolves to the receiver.
                receiver = first_word(&value.to_token_stream());
                let here = ours(value.span());
                let key = Ident::new(key, here);
                quote_spanned!(here=> .#key(&(#value)))
            })
            .collect();
        if !keys.is_empty() {
            let cfg = hook.function.cfg();
            arms.push(quote!(#(#cfg)* #index => #trainer::__private::Selected::all() #(#keys)*,));
        }
    }
    receiver.map(|receiver| {
        quote! {
            fn __selected(&#receiver, __nth: ::core::primitive::usize) -> #trainer::__private::Selected {
                match __nth {
                    #(#arms)*
                    _ => ::core::unreachable!(),
                }
            }
        }
    })
}

/// Expands to checks that no method of the block takes a context without being a hook, whatever the
/// name of the context's type is: rustc compares the types. The checks read the arguments from the
/// type of the method, so that they repeat no type. They are in a function that is never called
/// and whose name begins with an underscore, so that rustc still reports unused methods.
fn helpers(block: &Block, krate: &Krate<'_>) -> Option<TokenStream> {
    let methods = block.members.iter().filter_map(|member| match member {
        Member::Method(method) if !is_hook(method) => Some(&method.function),
        _ => None,
    });
    let checks: Vec<TokenStream> =
        methods.filter_map(|function| helper(function, &block.self_type, krate)).collect();
    let (generics, _, clause) = block.generics.split_for_impl();
    let trainer = krate.at(Span::call_site());
    (!checks.is_empty()).then(|| {
        quote! {
            fn __helpers #generics () #clause {
                use #trainer::__private::NoContext as _;
                #(#checks)*
            }
        }
    })
}

/// Expands to the check of one method. A generic method cannot be meant to be a hook.
fn helper(function: &Function, self_type: &Type, krate: &Krate<'_>) -> Option<TokenStream> {
    let sig = &function.signature;
    if sig.abi.is_some()
        || sig.generics.type_params().next().is_some()
        || sig.generics.const_params().next().is_some()
    {
        return None;
    }
    let mut checks = Vec::new();
    for (nth, argument) in sig.inputs.iter().enumerate() {
        let FnArg::Typed(argument) = argument else { continue };
        if holds_impl(&argument.ty) {
            return None;
        }
        if !may_be_a_context(&argument.ty) {
            continue;
        }
        let here = ours(innermost_path(match peeled(&argument.ty) {
            Type::Reference(reference) => &reference.elem,
            other => other,
        }));
        let is_first = !sig.inputs.iter().take(nth).any(|before| matches!(before, FnArg::Typed(_)));
        let position = Ident::new(if is_first { "is_not_first" } else { "is_not_later" }, here);
        let nth = syn::Index { index: u32::try_from(nth).ok()?, span: here };
        checks.push(quote_spanned!(here=> __arguments.#nth.#position();));
    }
    if checks.is_empty() {
        return None;
    }
    let name = &sig.ident;
    let cfg = function.cfg();
    let types: Vec<_> = (0..sig.inputs.len()).map(|nth| format_ident!("__A{nth}")).collect();
    let trainer = krate.at(Span::call_site());
    Some(quote! {
        #(#cfg)*
        {
            fn __of<#(#types,)* __R>(
                _: unsafe fn(#(#types),*) -> __R,
            ) -> (#(#trainer::__private::Probe<#types>,)*) {
                (#(#trainer::__private::Probe::<#types>::of_argument(),)*)
            }
            let __arguments = __of(<#self_type>::#name);
            #(#checks)*
        }
    })
}

/// Returns whether a type may be a reference to a context, as far as its tokens show.
fn may_be_a_context(written: &Type) -> bool {
    match peeled(written) {
        Type::Reference(reference) => may_be_a_context(&reference.elem),
        path @ Type::Path(_) => !is_foreign(path),
        Type::Macro(_) => true,
        _ => false,
    }
}

/// Returns whether a type contains `impl Trait`.
fn holds_impl(written: &Type) -> bool {
    flattened(written.to_token_stream()).any(|token| token.to_string() == "impl")
}

/// Returns the keys of a hook whose values are expressions of the form `self.…`.
fn of_value<'a>(hook: &Hook<'a>) -> impl Iterator<Item = (&'static str, &'a Expr)> {
    let of = setting(hook, |arguments| arguments.of.as_ref()).and_then(|of| match of {
        Of::Value(value) => Some(("of", &**value)),
        Of::Patterns(_) => None,
    });
    let only = setting(hook, |arguments| arguments.only.as_ref()).and_then(|only| match only {
        Only::Value(value) => Some(("only", &**value)),
        Only::Phases(_) => None,
    });
    let every = setting(hook, |arguments| arguments.every.as_ref());
    let every = every.filter(|(value, _)| is_of_value(value)).map(|(value, _)| ("every", value));
    [of, only, every].into_iter().flatten()
}

/// Expands to the functions that call one of the methods: those at points, and those around
/// operations.
fn calls(hooks: &[Hook<'_>], krate: &Krate<'_>) -> TokenStream {
    let trainer = krate.at(Span::call_site());
    let mut calls = Vec::new();
    let mut around_calls = Vec::new();
    for (index, hook) in hooks.iter().enumerate() {
        let name = &hook.function.signature.ident;
        let cfg = hook.function.cfg();
        let body = body(hook, krate, |arguments| quote!(Self::#name(self, #arguments)));
        let calls = if hook.next.is_some() { &mut around_calls } else { &mut calls };
        calls.push(quote!(#(#cfg)* #index => #body));
    }
    // One function for all methods compiles faster than a closure for each.
    let call = (!calls.is_empty()).then(|| {
        quote! {
            #[inline]
            fn __call(
                &mut self,
                __nth: ::core::primitive::usize,
                __run: &mut #trainer::__private::Run,
            ) -> #trainer::__private::HookResult {
                match __nth {
                    #(#calls)*
                    _ => ::core::unreachable!(),
                }
            }
        }
    });
    let call_around = (!around_calls.is_empty()).then(|| {
        quote! {
            #[inline]
            fn __call_around(
                &mut self,
                __nth: ::core::primitive::usize,
                __run: &mut #trainer::__private::Run,
                __rest: #trainer::__private::Rest<'_>,
            ) -> #trainer::__private::HookResult {
                match __nth {
                    #(#around_calls)*
                    _ => ::core::unreachable!(),
                }
            }
        }
    });
    quote!(#call #call_around)
}

/// Expands to the functions that access the state in the field that `state = self.<field>` names.
fn state_of_field(state: &SavedState, krate: &Krate<'_>) -> Option<TokenStream> {
    let field = state.field.as_ref()?;
    let span = ours(field.span());
    let trainer = krate.at(Span::call_site());
    let here = krate.at(span);
    let name = Ident::new("__field", span);
    let save = quote_spanned!(span=> #here::checkpoint::State::save(#name));
    let load = quote_spanned!(span=> #here::checkpoint::State::load(#name, __saved));
    let rolls_back = quote_spanned!(span=> #here::checkpoint::State::rolls_back(#name));
    // All messages are the same, so rustc reports a missing field, or one without a state, once.
    Some(quote! {
        fn __save(&self) -> #trainer::Result<#trainer::checkpoint::Saved> {
            let Self { #field: #name, .. } = self;
            #save
        }
        fn __load(&mut self, __saved: &#trainer::checkpoint::Saved) -> #trainer::Result<()> {
            let Self { #field: #name, .. } = self;
            #load
        }
        fn __rolls_back(&self) -> bool {
            let Self { #field: #name, .. } = self;
            #rolls_back
        }
    })
}

/// Returns the generics of a block, with the bounds of a hook type if the block has type
/// parameters, so that the user need not write them.
fn bounded(block: &Block) -> Generics {
    let mut generics = block.generics.clone();
    if generics.type_params().next().is_some() {
        let self_type = &block.self_type;
        let clause = generics.make_where_clause();
        clause.predicates.push(syn::parse_quote!(#self_type: ::core::marker::Send + 'static));
    }
    generics
}

fn method(hook: &Hook<'_>, index: usize, krate: &Krate<'_>) -> TokenStream {
    let trainer = krate.at(Span::call_site());
    let call_nth = format_ident!("{}", if hook.next.is_some() { "call_around_nth" } else { "call_nth" });
    let shim = quote!(#trainer::__private::#call_nth::<Self, __Block, #index>);
    let selected = quote!(#trainer::__private::selected_by_nth::<Self, __Block, #index>);
    let definition = definition(hook, &shim, Some(&selected), krate);
    let cfg = hook.function.cfg();
    quote!(#(#cfg)* #definition)
}

/// Expands to a call of the user's function, with its arguments and a conversion of its result.
/// With `every`, the call is made only if it is due. `call` receives the arguments and returns the
/// call expression.
fn body(hook: &Hook<'_>, krate: &Krate<'_>, call: impl FnOnce(TokenStream) -> TokenStream) -> TokenStream {
    let here = ours(hook.at);
    let at_context = krate.at(here);
    let context = Ident::new("__context", here);
    let lent = Ident::new(if hook.is_shared { "observed" } else { "lent" }, here);
    let run = Ident::new("__run", here);
    let when = setting(hook, |arguments| arguments.when.as_ref());
    // The function of `when` must not determine the type of the context.
    let of_type = when.map(|_| {
        let written = hook.context;
        quote!(::<#written>)
    });
    let bind_context = quote_spanned!(here=> let #context = #at_context::__private::#lent #of_type (#run););
    let bind_next = hook.next.map(|span| {
        let here = ours(span);
        let trainer = krate.at(here);
        let rest = Ident::new("__rest", here);
        let context = Ident::new("__context", here);
        let next = quote_spanned!(here=> #trainer::__private::next_of(&*#context, #rest));
        quote!(let __next = #next;)
    });
    let guard = may_be_main_only(hook.context).then(|| {
        let trainer = krate.at(Span::call_site());
        quote!(let __guard = #trainer::__private::main_only_guard(__run);)
    });
    let call = call(if bind_next.is_some() { quote!(#context, __next) } else { quote!(#context) });
    // In a variable, so that a wrong return type is reported where the user wrote it.
    let returned = Ident::new("__returned", hook.output);
    let outcome = if hook.function.never_returns() {
        call // otherwise rustc would warn about unreachable code
    } else {
        let trainer = krate.at(hook.output);
        let outcome = if hook.next.is_some() { "around_outcome" } else { "outcome" };
        let outcome = Ident::new(outcome, hook.output);
        let outcome = quote_spanned!(hook.output=> #trainer::__private::#outcome(#returned));
        quote!(let #returned = #call; #outcome)
    };
    let trainer = krate.at(Span::call_site());
    let otherwise = match hook.next {
        None => quote!(::core::result::Result::Ok(())),
        Some(_) => quote!(#trainer::__private::pass_on(__run, __rest)),
    };
    let due = setting(hook, |arguments| arguments.every.as_ref())
        .map(|_| quote!(if !#trainer::__private::is_due(__run) { return #otherwise; }));
    let when = when.map(|path| {
        let here = ours(path.span());
        let trainer = krate.at(here);
        let context = Ident::new("__context", here);
        let holds = quote_spanned!(here=> #trainer::__private::holds(&*#context, #path));
        quote!(if !#holds { return #otherwise; })
    });
    quote!({
        #due
        #guard
        #bind_context
        #when
        #bind_next
        #outcome
    })
}

/// Returns whether the hook possibly runs on rank 0 only, judging by the tokens of its context.
fn may_be_main_only(context: &Type) -> bool {
    main_of(context).is_some() || !marker_of(context).is_some_and(|marker| is_marker(&marker))
}

/// Returns a setting from the hook's own arguments, or else from the arguments of its block.
fn setting<'a, T>(hook: &Hook<'a>, get: impl Fn(&'a Arguments) -> Option<T>) -> Option<T> {
    [Some(hook.arguments), hook.inherited].into_iter().flatten().find_map(get)
}

/// Expands to the statement that defines a hook. `shim` is the function that the dispatch table
/// calls, and `selected` the one that evaluates keys with `self.…`; a free function has none.
fn definition(
    hook: &Hook<'_>,
    shim: &TokenStream,
    selected: Option<&TokenStream>,
    krate: &Krate<'_>,
) -> TokenStream {
    let trainer = krate.at(Span::call_site());
    let ord = setting(hook, |arguments| arguments.ord.as_ref());
    let ord = ord.map(|ord| quote!(.ord(const { let __ord: ::core::primitive::i32 = #ord; __ord })));
    let phases = setting(hook, |arguments| arguments.only.as_ref()).map_or(&[][..], |only| match only {
        Only::Phases(phases) => phases,
        Only::Value(_) => &[],
    });
    let only = phases.iter().map(|phase| {
        let here = ours(phase.span());
        let trainer = krate.at(here);
        quote_spanned!(here=> .only::<#trainer::phase::#phase>())
    });
    let every = setting(hook, |arguments| arguments.every.as_ref()).map(|(n, span)| {
        let here = if is_of_value(n) { ours(*span) } else { ours(n.span()) };
        let n = if is_of_value(n) { quote!(1_u64) } else { quote!(#n) };
        quote_spanned!(here=> .every(&(#n)))
    });
    let when = setting(hook, |arguments| arguments.when.as_ref()).map(|path| {
        let text = text_of(path);
        quote!(.when(#text))
    });
    let selected = of_value(hook).next().and(selected).map(|selected| quote!(.selected(#selected)));
    let of = setting(hook, |arguments| arguments.of.as_ref()).map(|modules| {
        let here = ours(modules.span());
        let trainer = krate.at(here);
        match modules {
            Of::Patterns(listed) => {
                let listed = listed.iter().map(|(text, optional)| {
                    let optional = optional.then(|| quote!(.optional()));
                    quote!(#trainer::__private::ModulePattern::new(#text)#optional)
                });
                quote_spanned!(here=> .of(const { &[#(#listed),*] }))
            }
            Of::Value(_) => quote_spanned!(here=> .of(&[])),
        }
    });
    let observes = hook.observes.then(|| quote!(.observes()));
    let writes = setting(hook, |arguments| arguments.writes).map(|_| quote!(.writes()));
    let may_fail = setting(hook, |arguments| arguments.may_fail).map(|_| quote!(.may_fail()));
    let trial = setting(hook, |arguments| arguments.trial).map(|runs| quote!(.trial(#runs)));
    let reads = reads_of(hook, krate);
    let sets = sets(hook, krate);
    let constraints = constraints(hook, krate);
    let docs = hook.function.docs();
    let name = &hook.function.signature.ident;
    let (line, column) = position_of(name.span());
    let name = name.unraw().to_string();
    let constructor =
        if hook.next.is_some() { format_ident!("define_around") } else { format_ident!("define_at") };
    let context = hook.context;
    quote! {
        #trainer::__private::#constructor::<#context>(&mut __hooks, #name, (#line, #column), #docs, #shim)
        #ord
        #(#only)*
        #every
        #of
        #when
        #selected
        #observes
        #writes
        #may_fail
        #trial
        #reads
        #sets
        #constraints;
    }
}

/// Expands to the types of the task, batch and prediction that every call of the hook reads.
/// Returns `None` for a hook with `when`, because the hook may be meant for some tasks only.
fn reads_of(hook: &Hook<'_>, krate: &Krate<'_>) -> Option<TokenStream> {
    if setting(hook, |arguments| arguments.when.as_ref()).is_some() {
        return None;
    }
    let reads: Vec<_> = reads(hook.function)
        .into_iter()
        .map(|Read { method, of }| {
            let here = ours(method.span());
            let trainer = krate.at(here);
            let name = method.to_string();
            quote_spanned!(here=> #trainer::__private::Read::of::<#of>(#name))
        })
        .collect();
    let trainer = krate.at(Span::call_site());
    (!reads.is_empty())
        .then(|| quote!(.reads(const { &[#(#reads),*] as &'static [#trainer::__private::Read] })))
}

/// Expands the key `in` of the method, or else that of its block.
fn sets(hook: &Hook<'_>, krate: &Krate<'_>) -> Option<TokenStream> {
    let sets = setting(hook, |arguments| (!arguments.sets.is_empty()).then_some(&arguments.sets))?;
    let refs = sets.iter().map(|path| {
        let here = ours(path.segments.last().map_or_else(|| path.span(), |last| last.ident.span()));
        let trainer = krate.at(here);
        let text = text_of(path);
        quote_spanned!(here=> #trainer::__private::SetRef::of::<#path>(#text))
    });
    let trainer = krate.at(Span::call_site());
    Some(quote!(.sets(const { &[#(#refs),*] as &'static [#trainer::__private::SetRef] })))
}

/// Expands the keys `before` and `after` of the method, or else those of its block.
fn constraints(hook: &Hook<'_>, krate: &Krate<'_>) -> Option<TokenStream> {
    let mut constraints = Vec::new();
    type Key = (&'static str, fn(&Arguments) -> &Vec<Target>);
    let keys: [Key; 2] = [("before", |arguments| &arguments.before), ("after", |arguments| &arguments.after)];
    for (key, targets) in keys {
        let own = targets(hook.arguments);
        let block = hook.inherited.map(targets);
        // For a method without its own attribute, `arguments` are the block's.
        let of_block = hook.in_block && hook.inherited.is_none() || own.is_empty();
        let targets = if own.is_empty() { block.unwrap_or(own) } else { own };
        constraints.extend(targets.iter().map(|target| constraint(key, target, of_block, krate)));
    }
    let trainer = krate.at(Span::call_site());
    (!constraints.is_empty())
        .then(|| quote!(.constraints(const { &[#(#constraints),*] as &'static [#trainer::__private::OrderConstraint] })))
}

fn constraint(key: &str, target: &Target, of_block: bool, krate: &Krate<'_>) -> TokenStream {
    let path = &target.path;
    let here = ours(path.segments.last().map_or_else(|| path.span(), |last| last.ident.span()));
    let trainer = krate.at(here);
    let key = Ident::new(key, here);
    let text = text_of(path);
    // A capitalized name is a type, any other a function: the expansion differs.
    let is_type = path
        .segments
        .last()
        .is_some_and(|segment| segment.ident.unraw().to_string().starts_with(char::is_uppercase));
    let id = if is_type {
        quote_spanned!(here=> #trainer::__private::target_type::<#path, _>())
    } else {
        quote_spanned!(here=> #trainer::__private::target_fn(&#path))
    };
    let optional = target.optional.then(|| quote!(.optional()));
    let inherited = of_block.then(|| quote!(.inherited()));
    quote_spanned!(here=> #trainer::__private::OrderConstraint::#key(#id, #text)#optional #inherited)
}

/// Returns a span that is located at `span` and resolves names like the macro's own tokens. rustc
/// points at a part of an expression only if all tokens of that part have the same location.
fn ours(span: Span) -> Span {
    Span::call_site().located_at(span)
}

/// Expands to the `Origin` of an item's hooks, without the line and the docs.
fn origin(path: &TokenStream, krate: &Krate<'_>, is_own: bool) -> TokenStream {
    // A package's library and binary may share a name. Cargo sets this variable for the binary
    // only.
    let in_binary = std::env::var_os("CARGO_BIN_NAME").map(|_| quote!(.in_binary()));
    let own = is_own.then(|| quote!(.own()));
    let trainer = krate.at(Span::call_site());
    let (line, column) = position_of(Span::call_site());
    quote! {
        #trainer::__private::Origin::new(
            ::core::module_path!(),
            #path,
            ::core::option_env!("CARGO_PKG_VERSION"),
            ::core::file!(),
            [(::core::line!(), ::core::column!()), (#line, #column)],
        )
        #in_binary
        #own
    }
}

fn path_of(name: &str) -> TokenStream {
    quote!(::core::concat!(::core::module_path!(), "::", #name))
}

/// Returns the line and the column of a span, or 0 in unit tests. `line!()` would return the line
/// of the attribute, which is the same for a whole block.
fn position_of(span: Span) -> (u32, u32) {
    if !proc_macro::is_available() {
        return (0, 0);
    }
    let span = span.unwrap();
    (u32::try_from(span.line()).unwrap_or(0), u32::try_from(span.column()).unwrap_or(0))
}
