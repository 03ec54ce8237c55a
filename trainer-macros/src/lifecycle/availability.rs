//! Availability: the generated traits for what exists at which moments, and their error messages.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::Path;

use super::flatten::{Moment, Origin, pascal};
use super::parse::{Availability, AvailabilityKind};
use crate::errors::Errors;

/// An availability with its moments resolved.
pub(super) struct Resolved<'a> {
    availability: &'a Availability,
    /// The indices of the first and last moment of each span.
    spans: Vec<(usize, usize)>,
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
        let mut find = |name: &Ident| {
            let found = moments.iter().position(|moment| moment.name == *name);
            if found.is_none() {
                errors.push(name.span(), format!("no point or operation `{name}` in this declaration"));
            }
            found
        };
        let (mut spans, mut backwards) = (Vec::new(), Vec::new());
        for span in &availability.spans {
            let (first, last) = (find(&span.first)?, find(&span.last)?);
            if first > last {
                backwards.push(span.last.span());
            }
            spans.push((first, last));
        }
        for span in backwards {
            errors.push(span, "the span ends before it begins: exchange its two moments");
        }
        let scopes = spans
            .iter()
            .map(|&(first, last)| {
                let (first, last) = (&moments[first].within, &moments[last].within);
                first.iter().rev().find(|operation| last.contains(operation)).copied()
            })
            .collect();
        let within = moments.iter().map(|moment| moment.within.clone()).collect();
        Some(Resolved { availability, spans, scopes, within })
    }

    /// The name of its trait: `HasLoss`.
    pub(super) fn name(&self) -> &Ident {
        &self.availability.has
    }

    pub(super) fn holds(&self, moment: usize) -> bool {
        self.spans.iter().any(|&(first, last)| (first..=last).contains(&moment))
    }

    /// Returns whether it spans several moments, so that *not yet* and *gone* are different
    /// mistakes.
    fn comes_and_goes(&self) -> bool {
        self.availability.kind != AvailabilityKind::Allowed
            && self.spans.iter().any(|(first, last)| first < last)
    }

    /// Returns the names of the three supertraits, one for each way to be unavailable:
    /// `LossWithin`, `LossBegun`, `LossKept`.
    fn stages(&self) -> [Ident; 3] {
        let stem = pascal(&self.availability.what.to_string());
        ["Within", "Begun", "Kept"].map(|stage| format_ident!("{stem}{stage}"))
    }

    pub(super) fn impls(&self, moment: usize, marker: &Ident) -> Vec<TokenStream> {
        let has = &self.availability.has;
        let mut impls = Vec::new();
        if self.holds(moment) {
            impls.push(quote!(impl #has for #marker {}));
        }
        if self.comes_and_goes() {
            let scope = (self.scopes.iter().zip(&self.spans))
                .find(|(scope, _)| scope.is_some_and(|scope| self.within[moment].contains(&scope)));
            let [within, begun, kept] = self.stages();
            let (is_within, is_begun, is_kept) = match scope {
                _ if self.holds(moment) => (true, true, true),
                None => (false, true, true),
                Some((_, &(first, _))) => (true, moment >= first, moment < first),
            };
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

    /// Returns the link in the docs of a moment: `loss` or `skip_step()`.
    pub(super) fn noted(&self, path: &str) -> String {
        let Availability { what, has, kind, .. } = self.availability;
        match kind {
            AvailabilityKind::Allowed => format!("[`{what}()`]({path}{has})"),
            _ => format!("[{what}]({path}{has})"),
        }
    }

    /// Implements *begun* and *kept* for a custom moment: what is unavailable there is reported as
    /// *never here*. `$marker` is a fragment of the surrounding macro.
    pub(super) fn absent(&self) -> Option<TokenStream> {
        let [_, begun, kept] = self.stages();
        self.comes_and_goes()
            .then(|| quote!(impl $crate::#begun for $marker {} impl $crate::#kept for $marker {}))
    }

    /// Exports its traits under fixed names in a module named after its noun, for custom lifecycles
    /// that list the noun. Custom moments implement the trainer's *begun* and *kept* already
    /// ([`absent`](Resolved::absent)), so empty traits take the place of those here.
    pub(super) fn by_noun(&self, origin: Origin) -> TokenStream {
        let Availability { what, has, .. } = self.availability;
        let about = format!(" [`{has}`](super::super::{has}): {}.", self.when());
        let stages = self.stages().into_iter().zip(["Within", "Begun", "Kept"]).map(|(own, stage)| {
            let name = format_ident!("{stage}");
            if self.comes_and_goes() && (stage == "Within" || origin == Origin::Custom) {
                quote!(#[doc(hidden)] pub use super::super::#own as #name;)
            } else {
                quote!(#[doc(hidden)] pub trait #name {})
            }
        });
        quote! {
            #[doc = #about]
            pub mod #what {
                pub use super::super::#has as Has;
                #(#stages)*
            }
        }
    }

    /// Formats the spans: "from `AfterLoss` to `AfterStep`", "at `AfterValid` and `AfterTest`".
    fn when(&self) -> String {
        let named = |name: &Ident| format!("`{}`", pascal(&name.to_string()));
        let mut has_at = false;
        let spans: Vec<_> = (self.availability.spans.iter())
            .map(|span| {
                if span.first != span.last {
                    has_at = false;
                    return format!("from {} to {}", named(&span.first), named(&span.last));
                }
                let at = if std::mem::replace(&mut has_at, true) { "" } else { "at " };
                format!("{at}{}", named(&span.first))
            })
            .collect();
        match spans.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => spans.concat(),
        }
    }

    pub(super) fn traits(&self, trainer: &Path) -> TokenStream {
        let Availability { docs, has, what, kind, .. } = self.availability;
        let when = self.when();
        let (is, it_exists, it_existed) = match kind {
            AvailabilityKind::Plural => ("are", "they exist", "they existed"),
            _ => ("is", "it exists", "it existed"),
        };
        let lead = if *kind == AvailabilityKind::Allowed {
            format!("`{what}` cannot be called at `{{Self}}`; it can be called {when}")
        } else {
            format!("there {is} no {what} at `{{Self}}`; {it_exists} {when}")
        };
        let label =
            if *kind == AvailabilityKind::Allowed { "not here".into() } else { format!("no {what} here") };
        let facts = format!(" Implemented {when}.");
        if !self.comes_and_goes() {
            return quote! {
                #(#docs)*
                #[doc = ""]
                #[doc = #facts]
                #[diagnostic::on_unimplemented(message = #lead, label = #label)]
                pub trait #has: #trainer::moment::Moment {}
            };
        }
        let [within, begun, kept] = self.stages();
        let not_yet = format!("there {is} no {what} yet at `{{Self}}`; {it_exists} {when}");
        let not_yet_label = format!("no {what} yet");
        let gone = format!("the {what} {is} gone at `{{Self}}`; {it_existed} {when}");
        let gone_label = format!("the {what} {is} gone");
        quote! {
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
