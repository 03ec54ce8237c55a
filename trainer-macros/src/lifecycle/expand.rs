//! From the declared tree to types, names, tables and impls.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Path;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use super::docs;
use super::existence::Resolved;
use super::flatten::{self, Kind, Moment, elsewhere, pascal, spanned};
use super::parse::Declaration;
use crate::errors::Errors;

/// Whose lifecycle it is: the trainer's, which all others hang from, or one of another crate.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Whose {
    Trainers,
    Own,
}

pub(super) fn expand(declaration: &Declaration, whose: Whose, errors: &mut Errors) -> TokenStream {
    let trainer = &declaration.trainer();
    let moments = flatten::moments(declaration, whose, errors);
    if whose == Whose::Trainers {
        for name in moments.iter().flat_map(|moment| &moment.again) {
            if local(name, &moments).is_none() {
                let name = &name.segments[0].ident;
                errors.push(name.span(), format!("no operation `{name}` is declared here"));
            }
        }
    }
    let existences: Vec<_> =
        declaration.existences.iter().filter_map(|it| Resolved::new(it, &moments, errors)).collect();

    let (types, impls): (Vec<_>, Vec<_>) =
        (0..moments.len()).map(|index| marker(index, &moments, &existences, whose, trainer)).unzip();
    let aliases = moments.iter().map(|moment| {
        let Moment { name, marker, .. } = moment;
        let about = &moment.docs;
        quote_spanned! { name.span()=> #(#[doc = #about])* pub type #name = #marker; }
    });
    // One import: where the declaration stands in a function, which has no path, that is one error.
    let all: Vec<_> = moments.iter().map(|moment| &moment.marker).collect();
    let imports = (!all.is_empty()).then(|| quote!(use super::{#(#all),*};));
    let infos = moments.iter().map(|moment| info(moment, &moments, trainer));
    let count = moments.len();
    let traits = existences.iter().map(|it| it.traits(trainer));
    let by_noun = existences.iter().map(|it| it.by_noun(whose));
    let nouns = (!existences.is_empty()).then(|| {
        quote! {
            /// What exists at some moments, each under its noun: what a lifecycle of another crate can ask for.
            pub mod has { #(#by_noun)* }
        }
    });
    let table = docs::table(&moments, &existences, "super::");
    let markers = moments.iter().map(|moment| &moment.marker);
    let things = existences.iter().map(Resolved::name);
    let absent = existences.iter().filter_map(Resolved::absent);
    let registered = match whose {
        Whose::Trainers => {
            let (points, text) =
                (points(&moments, trainer), docs::table(&moments, &existences, "crate::").join("\n"));
            let operations =
                moments.iter().filter(|it| matches!(it.kind, Kind::Operation { .. })).map(|moment| {
                    let Moment { name, marker, .. } = moment;
                    let about = &moment.docs;
                    quote_spanned! { name.span()=> #(#[doc = #about])* pub type #name = super::#marker; }
                });
            quote! {
                #points
                /// The names of the operations alone, as `#[hook(around = …)]` takes them.
                #[allow(non_camel_case_types)]
                pub mod around { #(#operations)* }
                /// What `trainer::prelude` takes: not `at` and `has`, whose names are for every lifecycle's own.
                #[doc(hidden)]
                pub mod names {
                    pub use super::{#(#markers,)* #(#things),*};
                }
                /// The table of all moments, for the docs of the language.
                macro_rules! moments_table { () => { #text } }
                pub(crate) use moments_table;

                /// For the moments of other crates.
                #[doc(hidden)]
                #[macro_export]
                macro_rules! __stages { ($marker:ident) => { #(#absent)* } }
            }
        }
        Whose::Own => quote! {
            static __LIFECYCLE: #trainer::__private::Declared = #trainer::__private::Declared::new(&MOMENTS);
            #trainer::__private::inventory::submit! { #trainer::__private::Collected(&__LIFECYCLE) }
        },
    };
    let facts = quote! {
        /// Everything that the declaration says, in the order of the tree.
        pub(crate) static MOMENTS: [#trainer::moment::MomentInfo; #count] = [#(#infos),*];
        #registered
        #(#impls)*
    };
    let facts = match whose {
        Whose::Trainers => facts,
        // No name of ours stands beside the user's.
        Whose::Own => quote!(const _: () = { #facts };),
    };
    quote! {
        #(#types)*

        /// The names of the points and operations, as `#[hook]` takes them.
        ///
        #(#[doc = #table])*
        #[allow(non_camel_case_types, unreachable_pub, dead_code)]
        pub mod at { #imports #(#aliases)* }

        #facts

        #(#traits)*

        #nouns
    }
}

/// The enumeration of the trainer's own points.
fn points(moments: &[Moment], trainer: &Path) -> TokenStream {
    let (variants, docs): (Vec<_>, Vec<_>) = moments
        .iter()
        .filter(|moment| !matches!(moment.kind, Kind::Operation { .. }))
        .map(|moment| (&moment.marker, &moment.docs))
        .unzip();
    quote! {
        /// The points of the trainer, in the order in which a run meets them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Point { #( #(#[doc = #docs])* #variants, )* }

        impl Point {
            /// Every point, in the order in which a run meets them.
            pub const ALL: &[Point] = &[#(Point::#variants),*];

            /// What the declaration says about this point.
            #[must_use]
            pub fn info(self) -> &'static #trainer::moment::MomentInfo {
                match self { #(Point::#variants => <#variants as #trainer::moment::Moment>::INFO,)* }
            }
        }
    }
}

/// The index of an operation that is declared here.
fn local(operation: &Path, moments: &[Moment]) -> Option<usize> {
    let word = operation.get_ident()?;
    moments.iter().position(|it| it.name == *word && matches!(it.kind, Kind::Operation { .. }))
}

/// The type of a moment, and what is implemented for it.
fn marker(
    index: usize,
    moments: &[Moment],
    existences: &[Resolved<'_>],
    whose: Whose,
    trainer: &Path,
) -> (TokenStream, TokenStream) {
    let moment = &moments[index];
    let Moment { marker, docs, within, outside, .. } = moment;
    let facts = docs::facts(moment, existences.iter().filter(|it| it.holds(index)));
    let kind = match &moment.kind {
        Kind::Operation { before, after } => {
            quote!(impl #trainer::moment::AtOperation for #marker { type Before = #before; type After = #after; })
        }
        _ => quote!(impl #trainer::moment::AtPoint for #marker {}),
    };
    let counted = match (&moment.counts, outside) {
        (Some(_), _) => quote!(impl #trainer::moment::Counted for #marker {}),
        // If what it lies in is.
        (None, Some(outside)) => {
            quote!(impl #trainer::moment::Counted for #marker where for<'counted> #outside: #trainer::moment::Counted {})
        }
        (None, None) => TokenStream::new(),
    };
    let mut reached: Vec<_> = (moment.phases.iter())
        .map(|phase| quote!(impl #trainer::moment::ReachedIn<#trainer::phase::#phase> for #marker {}))
        .collect();
    let mut inside: Vec<_> = (within.iter().map(|&operation| &moments[operation].marker))
        .map(|operation| quote!(impl #trainer::moment::Inside<#operation> for #marker {}))
        .collect();
    if let Some(outside) = outside {
        if moment.phases.is_empty() {
            reached.push(quote! {
                impl<Ph> #trainer::moment::ReachedIn<Ph> for #marker where #outside: #trainer::moment::ReachedIn<Ph> {}
            });
        }
        inside.push(quote! {
            impl<O> #trainer::moment::Inside<O> for #marker where #outside: #trainer::moment::Inside<O> {}
        });
    }
    // Each reported on the phase's own word.
    let checked = moment.checked.iter().zip(outside.iter().cycle()).map(|(phase, outside)| {
        let here = Span::call_site().located_at(phase.span());
        let (trainer, outside) = (spanned(trainer, here), spanned(outside, here));
        quote_spanned! {here=>
            const _: #trainer::Phase = #trainer::__private::phase_of::<#outside, #trainer::phase::#phase>();
        }
    });
    let checked: TokenStream = checked.collect();
    let promised = (whose == Whose::Own).then(|| promised(index, moments, trainer));
    let of_spans = existences.iter().flat_map(|it| it.impls(index, marker));
    let impls = [kind, counted].into_iter().chain(reached).chain(inside).chain(of_spans);
    let impls = impls.filter(|it| !it.is_empty());
    let row = match whose {
        Whose::Trainers => quote!(#index),
        Whose::Own => quote!(__LIFECYCLE.base() + #index),
    };
    let declared = quote_spanned! { marker.span()=>
        #(#[doc = #docs])*
        #[doc = ""]
        #[doc = #facts]
        #[allow(unreachable_pub, dead_code, missing_copy_implementations)]
        #[derive(Debug)]
        pub enum #marker {}
    };
    let impls = quote_spanned!(marker.span()=> #(#[diagnostic::do_not_recommend] #impls)*);
    let impls = quote! {
        #[diagnostic::do_not_recommend]
        impl #trainer::moment::Moment for #marker {
            const INFO: &'static #trainer::moment::MomentInfo = &MOMENTS[#index];
            #[inline]
            fn index() -> ::core::primitive::usize { #row }
        }
        #impls
        #checked
        #promised
    };
    (declared, impls)
}

/// What a moment of another crate has because it says so, and from where it can be reached because of that.
fn promised(index: usize, moments: &[Moment], trainer: &Path) -> TokenStream {
    let Moment { marker, has, within, outside, kind, .. } = &moments[index];
    let mut nouns: Vec<&Path> = Vec::new();
    for noun in has {
        if !nouns.contains(&noun) {
            nouns.push(noun);
        }
    }
    // So that the user's own word stands here once.
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
    // An operation lies in itself; it is reached from what is around it.
    let around = within.iter().rev().find(|&&operation| operation != index).map(|&it| &moments[it].marker);
    let place = match (around, outside) {
        (Some(operation), _) => Some(quote!(P: #trainer::moment::Inside<#operation>,)),
        (None, Some(outside)) => Some(quote!(P: #trainer::moment::Inside<#outside>,)),
        (None, None) => None,
    };
    // The points before and after an operation are reached by it alone. Without `do_not_recommend`: what is missing is told.
    let reached = (!matches!(kind, Kind::Before | Kind::After)).then(|| {
        quote! {
            impl<P> #trainer::moment::ReachFrom<P> for #marker where #place #(P: #names::Has,)* {}
        }
    });
    quote! {
        const _: () = {
            #(#imports)*
            #(
                impl #names::Has for #marker {}
                impl #names::Within for #marker {}
                impl #names::Begun for #marker {}
                impl #names::Kept for #marker {}
            )*
            impl #trainer::moment::Own for #marker {}
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
    let docs = moment.docs.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    // The operation around it: an operation lies in itself, and then in the next.
    let is_operation = matches!(moment.kind, Kind::Operation { .. });
    let around = moment.within.iter().rev().nth(usize::from(is_operation)).map(|&it| &moments[it].marker);
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
            let name = path.segments.last().map(|it| it.ident.to_string()).unwrap_or_default();
            if name.starts_with(char::is_uppercase) {
                quote!((::core::any::TypeId::of::<#path>(), #name))
            } else {
                quote!((#trainer::__private::id_of_own(&#path), #name))
            }
        });
        quote!(.by(&[#(#reachers),*]))
    });
    quote! {
        #trainer::moment::MomentInfo::new(
            #name,
            #loss,
            ::core::module_path!(),
            #trainer::moment::MomentKind::#kind,
            #docs,
        )
        .reached(#phases, #counts)
        .within(#within, &[#(#again),*])
        #by
    }
}
