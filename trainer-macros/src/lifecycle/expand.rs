//! Expands the declared tree to types, names, tables and impls.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Path;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::availability::Resolved;
use super::docs;
use super::flatten::{self, Kind, Moment, Origin, elsewhere, pascal, spanned};
use super::parse::Declaration;
use crate::docs::joined;
use crate::errors::Errors;
use crate::migration;

pub(super) fn expand(declaration: &Declaration, origin: Origin, errors: &mut Errors) -> TokenStream {
    let trainer = &declaration.trainer();
    let moments = flatten::moments(declaration, origin, errors);
    if origin == Origin::Builtin {
        for name in moments.iter().flat_map(|moment| &moment.again) {
            if local(name, &moments).is_none() {
                let name = &name.segments[0].ident;
                errors.push(name.span(), format!("no point or operation `{name}` in this declaration"));
            }
        }
    }
    let listed = declaration.availabilities.iter();
    let availabilities: Vec<_> = listed.filter_map(|thing| Resolved::new(thing, &moments, errors)).collect();

    let (types, impls): (Vec<_>, Vec<_>) =
        (0..moments.len()).map(|index| marker(index, &moments, &availabilities, origin, trainer)).unzip();
    let aliases = moments.iter().map(|moment| alias(moment, origin));
    // A function has no path, so `super` cannot reach markers that are declared in one. A single
    // import then fails with a single error, and the first name in it is advice for the user.
    let first = moments.first().filter(|_| origin == Origin::Custom);
    let advice = first.map(|Moment { name, .. }| {
        format_ident!("declare_{}_in_a_module_not_in_a_function", name.unraw(), span = name.span())
    });
    let type_of_advice = advice.as_ref().map(ours);
    let marker_of_module = type_of_advice.iter().map(|name| quote!(#[doc(hidden)] enum #name {}));
    let markers = moments.iter().filter(|moment| !moment.is_marker()).map(|moment| {
        // At the location of the name, so that rustc reports all of them together.
        Ident::new(&moment.marker.to_string(), moment.name.span())
    });
    let all: Vec<_> = advice.iter().cloned().chain(markers).collect();
    let imports = match origin {
        Origin::Builtin => quote!(use super::{#(#all),*};),
        Origin::Custom if all.is_empty() => TokenStream::new(),
        Origin::Custom => quote!(use super::super::{#(#all),*};),
    };
    let uses = type_of_advice
        .iter()
        .map(|name| quote!(const _: ::core::marker::PhantomData<#name> = ::core::marker::PhantomData;));
    let infos = moments.iter().map(|moment| info(moment, &moments, trainer));
    let count = moments.len();
    let traits = availabilities.iter().map(|thing| thing.traits(trainer));
    // Something that is available everywhere needs no promise.
    let promised = availabilities.iter().filter(|thing| !thing.is_everywhere() && !thing.is_exception());
    let by_noun = promised.map(|thing| thing.by_noun(origin));
    let nouns = (!availabilities.is_empty()).then(|| {
        quote! {
            /// The things that exist at certain moments, by the noun that a custom lifecycle lists
            /// after `:`.
            pub mod has { #(#by_noun)* }
        }
    });
    // Links are relative to the module around `at`.
    let up = if origin == Origin::Builtin { "" } else { "super::" };
    let table = docs::table(&moments, &availabilities, up);
    let markers = moments.iter().map(|moment| &moment.marker);
    let things = availabilities.iter().map(Resolved::name);
    let absent = availabilities.iter().filter_map(Resolved::absent);
    let registered = match origin {
        Origin::Builtin => {
            let text = docs::table(&moments, &availabilities, "crate::").join("\n");
            let bounds = availabilities.iter().map(Resolved::name);
            let sentences = availabilities.iter().map(Resolved::sentence);
            quote! {
                /// The names in `trainer::prelude`. `at` and `has` are not among them, because
                /// every lifecycle has these modules.
                #[doc(hidden)]
                pub mod names {
                    pub use super::{#(#markers,)* #(#things),*};
                }
                /// The table of all moments, for the docs of the hook language.
                macro_rules! moments_table { () => { #text } }
                pub(crate) use moments_table;

                /// When a method with this bound can be called, for the docs of `Cx`.
                macro_rules! available {
                    #((#bounds) => { #sentences };)*
                    (OnAllRanks) => { "Not in a hook with [`Main`](crate::Main), which runs on rank 0 only." };
                }
                pub(crate) use available;

                /// Implements *begun* and *kept* for a custom moment.
                #[doc(hidden)]
                #[macro_export]
                macro_rules! __stages { ($marker:ident) => { #(#absent)* } }
            }
        }
        Origin::Custom => quote! {
            static __LIFECYCLE: #trainer::__private::Lifecycle = #trainer::__private::Lifecycle::new(&MOMENTS);
            #trainer::__private::inventory::submit! { #trainer::__private::LifecycleRegistration(&__LIFECYCLE) }
        },
    };
    let facts = quote! {
        /// Every point and operation, in the order of the tree.
        pub static MOMENTS: [#trainer::moment::MomentInfo; #count] = [#(#infos),*];
        #registered
        #(#impls)*
    };
    let facts = match origin {
        Origin::Builtin => facts,
        // In a constant, so that our names cannot clash with the user's.
        Origin::Custom => quote!(const _: () = { #facts };),
    };
    let names = quote! {
        /// The points and operations by name, for use after `within` and `again` in `lifecycle!`.
        ///
        #(#[doc = #table])*
        pub mod at { #imports #(#uses)* #(#aliases)* }

        #nouns
    };
    // Two lifecycles in one module would both have these modules. rustc then reports the name of
    // the module around them, which is advice for the user.
    let names = match origin {
        Origin::Builtin => names,
        Origin::Custom => quote! {
            #[doc(hidden)]
            pub mod a_module_has_one_lifecycle_so_write_both_in_one { #names }
            pub use a_module_has_one_lifecycle_so_write_both_in_one::*;
        },
    };
    quote! {
        #(#marker_of_module)*
        #(#types)*

        #names

        #facts

        #(#traits)*
    }
}

/// Returns the name at the same location, but with the hygiene of the expansion. The user cannot
/// change such a name, so lints about it must not be reported to the user.
fn ours(name: &Ident) -> Ident {
    let mut name = name.clone();
    name.set_span(Span::call_site().located_at(name.span()));
    name
}

/// Expands to the name of a moment, as an alias of its marker type.
fn alias(moment: &Moment, origin: Origin) -> TokenStream {
    let Moment { marker, docs, .. } = moment;
    let name = ours(&moment.name);
    if moment.is_marker() {
        return match origin {
            Origin::Builtin => quote_spanned!(name.span()=> pub use super::#name;),
            Origin::Custom => quote_spanned!(name.span()=> pub use super::super::#name;),
        };
    }
    quote_spanned! { name.span()=> #(#[doc = #docs])* pub type #name = #marker; }
}

/// Returns the index in `moments` of the operation or standalone point with this name; `None` if
/// this declaration has none.
fn local(operation: &Path, moments: &[Moment]) -> Option<usize> {
    let word = operation.get_ident()?;
    moments.iter().position(|moment| {
        moment.name == *word && matches!(moment.kind, Kind::Operation { .. } | Kind::Point)
    })
}

/// Expands to the marker type of a moment, and to its impls.
fn marker(
    index: usize,
    moments: &[Moment],
    availabilities: &[Resolved<'_>],
    origin: Origin,
    trainer: &Path,
) -> (TokenStream, TokenStream) {
    let moment = &moments[index];
    let Moment { marker, docs, within, outside, .. } = moment;
    let things = availabilities.iter().filter(|thing| thing.holds(index) && !thing.is_everywhere());
    let facts = docs::facts(moment, things);
    let kind = match &moment.kind {
        Kind::Operation { before, after } => {
            quote!(impl #trainer::moment::AtOperation for #marker { type Before = #before; type After = #after; })
        }
        _ => quote!(impl #trainer::moment::AtPoint for #marker {}),
    };
    let payload = match (&moment.kind, &moment.payload) {
        (_, Some(payload)) => {
            // Located where rustc reports a type that is private.
            let here = Span::call_site().located_at(payload.span());
            let payload = quote_spanned!(here=> type Payload = #payload;);
            quote!(impl #trainer::moment::HasPayload for #marker { #payload })
        }
        (Kind::Operation { .. }, None) => TokenStream::new(),
        (_, None) => quote!(impl #trainer::moment::WithoutPayload for #marker {}),
    };
    let counted = match (&moment.counts, outside) {
        (Some(_), _) => quote!(impl #trainer::moment::Counted for #marker {}),
        // The moment is counted if the operation that it extends is.
        (None, Some(outside)) => {
            quote!(impl #trainer::moment::Counted for #marker where for<'__counted> #outside: #trainer::moment::Counted {})
        }
        (None, None) => TokenStream::new(),
    };
    let mut reached: Vec<_> = (moment.phases.iter())
        .map(|phase| quote!(impl #trainer::moment::ReachedIn<#trainer::phase::#phase> for #marker {}))
        .collect();
    let mut inside: Vec<_> = (within.iter().map(|&operation| &moments[operation].marker))
        .map(|operation| quote!(impl #trainer::moment::Within<#operation> for #marker {}))
        .collect();
    if let Some(outside) = outside {
        if moment.phases.is_empty() {
            reached.push(quote! {
                impl<__Ph> #trainer::moment::ReachedIn<__Ph> for #marker where #outside: #trainer::moment::ReachedIn<__Ph> {}
            });
        }
        inside.push(quote! {
            impl<__O> #trainer::moment::Within<__O> for #marker where #outside: #trainer::moment::Within<__O> {}
        });
    }
    // Each check is located on the phase's name, where rustc reports a mistake.
    let checked = moment.checked.iter().zip(outside.iter().cycle()).map(|(phase, outside)| {
        let here = Span::call_site().located_at(phase.span());
        let trainer = spanned(trainer, here);
        let outside = spanned(outside, here);
        quote_spanned! {here=>
            const _: #trainer::Phase = #trainer::__private::phase_of::<#outside, #trainer::phase::#phase>();
        }
    });
    let checked: TokenStream = checked.collect();
    let promised = (origin == Origin::Custom).then(|| promised(index, moments, trainer));
    let of_spans = availabilities.iter().flat_map(|thing| thing.impls(index, marker));
    let impls = [kind, payload, counted].into_iter().chain(reached).chain(inside).chain(of_spans);
    let impls = impls.filter(|tokens| !tokens.is_empty());
    let row = match origin {
        Origin::Builtin => quote!(#index),
        Origin::Custom => quote!(__LIFECYCLE.base() + #index),
    };
    let aliases = match origin {
        Origin::Builtin => migration::names_of(&marker.to_string()),
        Origin::Custom => BTreeSet::new(),
    };
    let declared = quote_spanned! { marker.span()=>
        #(#[doc = #docs])*
        #[doc = ""]
        #[doc = #facts]
        #(#[doc(alias = #aliases)])*
        #[derive(Debug)]
        pub enum #marker {}
    };
    let missing = availabilities.iter().filter_map(|thing| thing.missing(index, marker));
    let impls = quote_spanned!(marker.span()=> #(#[diagnostic::do_not_recommend] #impls)* #(#missing)*);
    let impls = quote! {
        #[diagnostic::do_not_recommend]
        impl #trainer::moment::Moment for #marker {
            const INFO: &'static #trainer::moment::MomentInfo = &MOMENTS[#index];
            #[inline]
            fn index() -> ::core::primitive::usize { #row }
        }
        #[diagnostic::do_not_recommend]
        impl #trainer::moment::OnAllRanks for #marker {}
        #impls
        #checked
        #promised
    };
    (declared, impls)
}

/// Expands to the impls of a custom moment: of `CustomMoment`, of the traits of its nouns, and of
/// `FireableFrom`. The moment can be fired from any moment within the surrounding operation if
/// everything that its nouns name exists there. The points before and after an operation do not
/// implement `FireableFrom`.
fn promised(index: usize, moments: &[Moment], trainer: &Path) -> TokenStream {
    let Moment { marker, has, within, outside, kind, .. } = &moments[index];
    let mut nouns: Vec<&Path> = Vec::new();
    for noun in has {
        if !nouns.contains(&noun) {
            nouns.push(noun);
        }
    }
    // Aliases, so that the user's own path occurs only once.
    let mut names: Vec<_> = (0..nouns.len()).map(|nth| format_ident!("__has{nth}")).collect();
    let imports = nouns.iter().zip(&mut names).map(|(noun, name)| {
        let span = noun.span();
        name.set_span(Span::call_site().located_at(span));
        match noun.get_ident() {
            Some(word) => {
                let trainer = spanned(trainer, span);
                quote_spanned!(span=> use #trainer::has::#word as #name;)
            }
            None => quote_spanned!(span=> use #noun as #name;),
        }
    });
    let imports: Vec<_> = imports.collect();
    // `within` includes the operation itself, which is entered from the next operation around it.
    let around = within.iter().rev().find(|&&operation| operation != index);
    let around = around.map(|&operation| &moments[operation].marker);
    let place = match (around, outside) {
        (Some(operation), _) => Some(quote!(__P: #trainer::moment::Within<#operation>,)),
        (None, Some(outside)) => Some(quote!(__P: #trainer::moment::Within<#outside>,)),
        (None, None) => None,
    };
    // Only the operation itself fires the points before and after it. There is no
    // `do_not_recommend` here, so that rustc names the missing bound.
    let reached = (!matches!(kind, Kind::Before | Kind::After)).then(|| {
        quote! {
            impl<__P> #trainer::moment::FireableFrom<__P> for #marker
            where
                __P: #trainer::moment::OnAllRanks + #trainer::HasTask,
                #place
                #(__P: #names::Has,)*
            {}
        }
    });
    quote! {
        const _: () = {
            #(#imports)*
            #(
                impl #names::Given for #marker {}
                impl #names::Within for #marker {}
                impl #names::Begun for #marker {}
                impl #names::Kept for #marker {}
            )*
            impl #trainer::moment::CustomMoment for #marker {}
            #trainer::__stages! { #marker }
            #reached
        };
    }
}

fn info(moment: &Moment, moments: &[Moment], trainer: &Path) -> TokenStream {
    let Moment { outside, .. } = moment;
    let name = moment.name.unraw().to_string();
    let loss = format!("{name}/loss");
    let kind = match moment.kind {
        Kind::Point => quote!(Point),
        Kind::Before => quote!(Before),
        Kind::Operation { .. } => quote!(Operation),
        Kind::After => quote!(After),
    };
    let of_outside = |what: TokenStream| quote!(<#outside as #trainer::moment::Moment>::INFO.#what);
    let phases = if moment.phases.is_empty() && outside.is_some() {
        of_outside(quote!(phases))
    } else {
        let phases = &moment.phases;
        quote! {
            #trainer::PhaseSet::from_phases(&[
                #(<#trainer::phase::#phases as #trainer::phase::PhaseMarker>::PHASE),*
            ])
        }
    };
    let counts = match &moment.counts {
        Some(unit) => {
            let unit = format_ident!("{}", pascal(&unit.to_string()), span = unit.span());
            quote!(::core::option::Option::Some(#trainer::moment::Unit::#unit))
        }
        None if outside.is_some() => of_outside(quote!(counts)),
        None => quote!(::core::option::Option::None),
    };
    let docs = joined(&moment.docs, " ");
    // The operation around it; `within` ends with the operation itself.
    let is_operation = matches!(moment.kind, Kind::Operation { .. });
    let around = moment.within.iter().rev().nth(usize::from(is_operation));
    let around = around.map(|&operation| &moments[operation].marker);
    let within = match (around, outside) {
        (Some(operation), _) => {
            quote!(::core::option::Option::Some(<#operation as #trainer::moment::Moment>::index))
        }
        (None, Some(outside)) => {
            quote!(::core::option::Option::Some(#trainer::__private::within::<#outside>()))
        }
        (None, None) => quote!(::core::option::Option::None),
    };
    let again = moment.again.iter().map(|path| match local(path, moments) {
        Some(operation) => {
            let marker = &moments[operation].marker;
            quote!(<#marker as #trainer::moment::Moment>::index)
        }
        None => {
            let path = elsewhere(path, trainer);
            quote!(#trainer::__private::within::<#path>())
        }
    });
    let by = (!moment.by.is_empty()).then(|| {
        let reachers = moment.by.iter().map(|path| {
            let name = path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
            if name.starts_with(char::is_uppercase) {
                quote!((::core::any::TypeId::of::<#path>(), #name))
            } else {
                quote!((#trainer::__private::id_of_own(&#path), #name))
            }
        });
        quote!(.by(&[#(#reachers),*]))
    });
    let computes = moment.computes.then(|| quote!(.computes()));
    quote! {
        #trainer::moment::MomentInfo::new(
            #name,
            #loss,
            (::core::module_path!(), ::core::option_env!("CARGO_PKG_VERSION")),
            #trainer::moment::MomentKind::#kind,
            #docs,
        )
        .reached(#phases, #counts)
        .within(#within, &[#(#again),*])
        #computes
        #by
    }
}
