//! Availability: the generated traits for what exists at which moments, and their error messages.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::Path;
use syn::ext::IdentExt;

use super::flatten::{Kind, Moment, Origin, pascal};
use super::parse::{Availability, AvailabilityKind};
use crate::errors::Errors;
use crate::keys::nearest;

/// An availability with its moments resolved.
pub(super) struct Resolved<'a> {
    availability: &'a Availability,
    /// The indices of the first and last moment of each span.
    spans: Vec<(usize, usize)>,
    /// The operation that each span excludes, if any.
    excepts: Vec<Option<usize>>,
    /// The innermost operation around each span, to distinguish *not yet*, *gone* and *never here*.
    scopes: Vec<Option<usize>>,
    within: Vec<Vec<usize>>,
}

impl<'a> Resolved<'a> {
    pub(super) fn new(
        availability: &'a Availability,
        moments: &[Moment],
        errors: &mut Errors,
    ) -> Option<Self> {
        let find = |name: &Ident, errors: &mut Errors| {
            let found = moments.iter().position(|moment| moment.name == *name);
            if found.is_none() {
                let names: Vec<String> = moments.iter().map(|moment| moment.name.to_string()).collect();
                let meant = nearest(&name.to_string(), names.iter().map(String::as_str));
                let help = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
                errors.push(name.span(), format!("no point or operation `{name}` in this declaration{help}"));
            }
            found
        };
        let stem = pascal(&availability.what.unraw().to_string());
        if syn::parse_str::<Ident>(&format!("{stem}Within")).is_err() {
            errors.push(availability.what.span(), "expected a noun that starts with a letter");
            return None;
        }
        errors.reserved(&availability.has);
        let mut spans = Vec::new();
        let mut excepts = Vec::new();
        let mut backwards = Vec::new();
        for span in &availability.spans {
            let first = find(&span.first, errors)?;
            let last = find(&span.last, errors)?;
            if first > last {
                backwards.push(span.last.span());
            }
            spans.push((first, last));
            excepts.push(match &span.except {
                Some(operation) => {
                    let found = find(operation, errors)?;
                    if !matches!(moments[found].kind, Kind::Operation { .. }) {
                        errors.push(operation.span(), "expected an operation after `except`");
                    }
                    Some(found)
                }
                None => None,
            });
        }
        for span in backwards {
            errors.push(span, "the span ends before it begins: swap its two moments");
        }
        let scopes = spans
            .iter()
            .map(|&(first, last)| {
                let around_last = &moments[last].within;
                moments[first].within.iter().rev().find(|operation| around_last.contains(operation)).copied()
            })
            .collect();
        let within = moments.iter().map(|moment| moment.within.clone()).collect();
        Some(Resolved { availability, spans, excepts, scopes, within })
    }

    /// Returns the name of the trait, such as `HasLoss`.
    pub(super) fn name(&self) -> &Ident {
        &self.availability.has
    }

    /// Returns whether the thing is available everywhere, including custom lifecycles, except at
    /// the listed moments.
    pub(super) fn is_exception(&self) -> bool {
        self.availability.except
    }

    pub(super) fn holds(&self, moment: usize) -> bool {
        let is_listed = self.spans.iter().any(|&(first, last)| (first..=last).contains(&moment));
        (is_listed && !self.is_excepted(moment)) != self.is_exception()
    }

    /// Returns whether a span excludes the moment.
    fn is_excepted(&self, moment: usize) -> bool {
        self.excepts.iter().flatten().any(|operation| self.within[moment].contains(operation))
    }

    /// Returns whether a span covers the whole declaration, and therefore every custom lifecycle
    /// too.
    pub(super) fn is_everywhere(&self) -> bool {
        self.spans.iter().any(|&(first, last)| first == 0 && last + 1 == self.within.len())
    }

    /// Returns whether the thing exists over several moments, so that *not yet* and *gone* are
    /// different mistakes.
    fn comes_and_goes(&self) -> bool {
        self.availability.kind != AvailabilityKind::Allowed
            && self.spans.iter().any(|(first, last)| first < last)
    }

    /// Returns the names of the three supertraits, one for each way to be unavailable:
    /// `LossWithin`, `LossBegun`, `LossKept`.
    fn stages(&self) -> [Ident; 3] {
        let stem = pascal(&self.availability.what.unraw().to_string());
        ["Within", "Begun", "Kept"].map(|stage| format_ident!("{stem}{stage}"))
    }

    /// Returns which of the three stages hold at a moment.
    fn stages_at(&self, moment: usize) -> [bool; 3] {
        let scope = (self.scopes.iter().zip(&self.spans))
            .find(|(scope, _)| scope.is_some_and(|scope| self.within[moment].contains(&scope)));
        match scope {
            _ if self.holds(moment) => [true, true, true],
            _ if self.is_excepted(moment) => [false, true, true],
            None => [false, true, true],
            Some((_, &(first, _))) => [true, moment >= first, moment < first],
        }
    }

    pub(super) fn impls(&self, moment: usize, marker: &Ident) -> Vec<TokenStream> {
        let has = &self.availability.has;
        let mut impls = Vec::new();
        if self.holds(moment) {
            impls.push(quote!(impl #has for #marker {}));
        }
        if self.comes_and_goes() {
            let [within, begun, kept] = self.stages();
            let [is_within, is_begun, is_kept] = self.stages_at(moment);
            let stages = [(within, is_within), (begun, is_begun), (kept, is_kept)];
            impls.extend(
                stages
                    .iter()
                    .filter(|(_, given)| *given)
                    .map(|(stage, _)| quote!(impl #stage for #marker {})),
            );
        }
        impls
    }

    /// Expands to the impl of the trait for a moment at which the thing is unavailable, on the
    /// condition that the missing stage is there, which it never is.
    ///
    /// A method is bounded by the three stages and then by the trait. For such a moment, rustc then
    /// reports the missing stage, with its own words, and not the trait, whose error is the same.
    /// For a type parameter, it reports the trait, and not the stages, which the trait implies.
    pub(super) fn missing(&self, moment: usize, marker: &Ident) -> Option<TokenStream> {
        if self.holds(moment) || !self.comes_and_goes() {
            return None;
        }
        let has = &self.availability.has;
        let missing = self.stages().into_iter().zip(self.stages_at(moment)).find(|(_, given)| !given)?.0;
        Some(quote! {
            #[doc(hidden)]
            #[diagnostic::do_not_recommend]
            impl #has for #marker where for<'__never> #marker: #missing {}
        })
    }

    /// Returns a link for the docs of a moment, with a text such as `loss` or `skip_batch()`.
    pub(super) fn noted(&self, path: &str) -> String {
        let Availability { what, has, kind, .. } = self.availability;
        match kind {
            AvailabilityKind::Allowed => format!("[`{what}()`]({path}{has})"),
            _ => format!("[{what}]({path}{has})"),
        }
    }

    /// Expands to the impls of *begun* and *kept* for a custom moment. Something that is
    /// unavailable at the moment is then reported as *never here*. Something that is available
    /// everywhere, with or without exceptions, is also available at the custom moment. `$marker` is
    /// a fragment of the surrounding macro.
    pub(super) fn absent(&self) -> Option<TokenStream> {
        if self.is_exception() {
            let has = &self.availability.has;
            return Some(quote!(#[diagnostic::do_not_recommend] impl $crate::#has for $marker {}));
        }
        let has = &self.availability.has;
        let [within, begun, kept] = self.stages();
        let (always, condition) = match self.is_everywhere() {
            true => (Some(&within), None),
            // As in `missing`.
            false => (None, Some(quote!(where for<'__never> $marker: $crate::#within))),
        };
        let names = [&begun, &kept].into_iter().chain(always);
        self.comes_and_goes().then(|| {
            quote! {
                #(
                    #[diagnostic::do_not_recommend]
                    impl $crate::#names for $marker {}
                )*
                #[diagnostic::do_not_recommend]
                impl $crate::#has for $marker #condition {}
            }
        })
    }

    /// Exports the traits of the availability under fixed names, in a module with the name of its
    /// noun. Custom lifecycles that list the noun use this module. It has empty traits instead of
    /// the trainer's *begun* and *kept* traits, which custom moments already implement
    /// ([`absent`](Resolved::absent)).
    pub(super) fn by_noun(&self, origin: Origin) -> TokenStream {
        let Availability { what, has, .. } = self.availability;
        // A custom lifecycle has one more module around the nouns.
        let (up, link) = match origin {
            Origin::Builtin => (quote!(super::super), "super"),
            Origin::Custom => (quote!(super::super::super), "super::super"),
        };
        let about = format!(" [`{has}`]({link}::{has}): {}.", self.when());
        // Custom moments implement the trainer's traits already, on the condition that `Within`
        // holds.
        let given = match self.comes_and_goes() && origin == Origin::Builtin {
            true => quote!(
                #[doc(hidden)]
                pub trait Given {}
            ),
            false => quote!(#[doc(hidden)] pub use #up::#has as Given;),
        };
        let stages = self.stages().into_iter().zip(["Within", "Begun", "Kept"]).map(|(own, stage)| {
            let name = format_ident!("{stage}");
            if self.comes_and_goes() && (stage == "Within" || origin == Origin::Custom) {
                quote!(#[doc(hidden)] pub use #up::#own as #name;)
            } else {
                quote!(#[doc(hidden)] pub trait #name {})
            }
        });
        quote! {
            #[doc = #about]
            pub mod #what {
                pub use #up::#has as Has;
                #given
                #(#stages)*
            }
        }
    }

    /// Formats the spans: "from `AfterLoss` to `AfterStep`", "at `AfterValid` and `AfterTest`".
    fn when(&self) -> String {
        self.when_with(|marker| format!("`{marker}`"))
    }

    /// Returns the sentence for the docs of a method that requires the trait: "Available from
    /// `AfterLoss` to `AfterStep`: `HasLoss`.", with links.
    pub(super) fn sentence(&self) -> String {
        let has = self.name();
        let when = self.when_with(|marker| format!("[`{marker}`](crate::{marker})"));
        format!("Available {when}: [`{has}`](crate::{has}).")
    }

    /// Formats the spans, and each marker type in them with `format`.
    fn when_with(&self, format: impl Fn(&str) -> String) -> String {
        let named = |name: &Ident| format(&pascal(&name.to_string()));
        let mut has_at = false;
        let spans: Vec<_> = (self.availability.spans.iter())
            .map(|span| {
                let except = span.except.as_ref().map(|operation| format!("except in {}", named(operation)));
                match (&except, self.is_everywhere()) {
                    (Some(except), true) => return format!("everywhere {except}"),
                    (None, true) => return "everywhere".to_owned(),
                    _ => {}
                }
                if span.first != span.last {
                    has_at = false;
                    let except = except.map(|except| format!(" ({except})")).unwrap_or_default();
                    return format!("from {} to {}{except}", named(&span.first), named(&span.last));
                }
                let at = if std::mem::replace(&mut has_at, true) { "" } else { "at " };
                format!("{at}{}", named(&span.first))
            })
            .collect();
        let spans = match spans.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => spans.concat(),
        };
        if self.is_exception() { format!("everywhere except {spans}") } else { spans }
    }

    pub(super) fn traits(&self, trainer: &Path) -> TokenStream {
        let Availability { docs, has, what, kind, on_all_ranks, .. } = self.availability;
        let when = self.when();
        let (is, it_exists, it_existed) = match kind {
            AvailabilityKind::Plural => ("are", "they exist", "they existed"),
            _ => ("is", "it exists", "it existed"),
        };
        let lead = if *kind == AvailabilityKind::Allowed {
            let ranks = if *on_all_ranks { " on all ranks, without `Main`" } else { "" };
            format!("`{what}` cannot be called at `{{Self}}`; it can be called {when}{ranks}")
        } else {
            format!("there {is} no {what} at `{{Self}}`; {it_exists} {when}")
        };
        let label =
            if *kind == AvailabilityKind::Allowed { "not here".into() } else { format!("no {what} here") };
        let (facts, moment) = match on_all_ranks {
            true => (format!(" Implemented {when}, but not for `Main`."), quote!(OnAllRanks)),
            false => (format!(" Implemented {when}."), quote!(Moment)),
        };
        // A condition that never holds, as in `missing`.
        let never = on_all_ranks
            .then(|| quote!(where for<'__never> #trainer::moment::Main<__P>: #trainer::moment::OnAllRanks));
        // What exists at a moment also exists for its hooks that run on rank 0 only.
        let on_main = |name: &Ident| {
            quote! {
                #[diagnostic::do_not_recommend]
                impl<__P: #name> #name for #trainer::moment::Main<__P> #never {}
            }
        };
        let has_on_main = on_main(has);
        if !self.comes_and_goes() {
            return quote! {
                #has_on_main

                #(#docs)*
                #[doc = ""]
                #[doc = #facts]
                #[diagnostic::on_unimplemented(message = #lead, label = #label)]
                pub trait #has: #trainer::moment::#moment {}
            };
        }
        let [within, begun, kept] = self.stages();
        let not_yet = format!("there {is} no {what} yet at `{{Self}}`; {it_exists} {when}");
        let not_yet_label = format!("no {what} yet");
        let gone = format!("the {what} {is} gone at `{{Self}}`; {it_existed} {when}");
        let gone_label = format!("the {what} {is} gone");
        let stages_on_main = [&within, &begun, &kept].map(on_main);
        quote! {
            #has_on_main
            #(#stages_on_main)*

            #(#docs)*
            #[doc = ""]
            #[doc = #facts]
            #[diagnostic::on_unimplemented(message = #lead, label = #label)]
            pub trait #has: #within + #begun + #kept {}

            #[doc(hidden)]
            #[diagnostic::on_unimplemented(message = #lead, label = #label)]
            pub trait #within: #trainer::moment::Moment {}
            #[doc(hidden)]
            #[diagnostic::on_unimplemented(message = #not_yet, label = #not_yet_label)]
            pub trait #begun: #trainer::moment::Moment {}
            #[doc(hidden)]
            #[diagnostic::on_unimplemented(message = #gone, label = #gone_label)]
            pub trait #kept: #trainer::moment::Moment {}
        }
    }
}
