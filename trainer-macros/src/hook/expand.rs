//! From checked hooks to registrations.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Type;
use syn::ext::IdentExt;

use super::arguments::Arguments;
use super::check::{Checked, Hook};

pub(super) fn expand(checked: &Checked<'_>) -> TokenStream {
    let registration = match checked {
        Checked::Free(hooks) => hooks.iter().map(free).collect(),
        Checked::Block(block, hooks) => {
            let points = hooks.iter().enumerate().map(|(index, hook)| {
                let (alias, point, cfg) = (alias(index), &hook.point, hook.function.cfg());
                quote!(#(#cfg)* type #alias = #point;)
            });
            let self_type = &block.self_type;
            let type_name = last_word(self_type);
            let definitions =
                hooks.iter().enumerate().map(|(index, hook)| method(hook, alias(index), &type_name));
            let (impl_generics, _, where_clause) = block.generics.split_for_impl();
            quote! {
                #(#points)*
                #[diagnostic::do_not_recommend]
                impl #impl_generics ::trainer::__private::Hooks for #self_type #where_clause {
                    const HOOKS: &'static [::trainer::__private::HookDef] = &[#(#definitions),*];
                }
                ::trainer::__private::inventory::submit! {
                    ::trainer::__private::Linked(::core::module_path!())
                }
            }
        }
    };
    quote! {
        #[allow(non_camel_case_types, unused_qualifications, clippy::all, clippy::pedantic)]
        const _: () = { #registration };
    }
}

/// The name by which the expansion speaks of a point, so that the user's own name stands in it once.
fn alias(index: usize) -> Ident {
    format_ident!("__At{index}")
}

fn free(hook: &Hook<'_>) -> TokenStream {
    let (at, point, name) = (alias(0), &hook.point, &hook.function.signature.ident);
    let word = name.unraw().to_string();
    let definition = Definition {
        at: at.clone(),
        path: path_of(&word),
        method: quote!(::core::option::Option::None),
        call: |context| quote!(#name(#context)),
        shim: |body| quote!(|__run, _| #body),
    };
    let definition = definition.expand(hook);
    quote! {
        type #at = #point;
        ::trainer::__private::inventory::submit! { ::trainer::__private::Discovered(#definition) }
    }
}

fn method(hook: &Hook<'_>, at: Ident, type_name: &str) -> TokenStream {
    let name = &hook.function.signature.ident;
    let word = name.unraw().to_string();
    let definition = Definition {
        at,
        path: path_of(type_name),
        method: quote!(::core::option::Option::Some(#word)),
        call: |context| quote!(Self::#name(__hook, #context)),
        shim: |body| quote!(|__run, __slot| ::trainer::__private::lend::<Self>(__run, __slot, |__hook, __run| #body)),
    };
    let (definition, cfg) = (definition.expand(hook), hook.function.cfg());
    quote!(#(#cfg)* #definition)
}

/// The constant that describes one hook and how to call it.
struct Definition<C, S> {
    at: Ident,
    path: TokenStream,
    method: TokenStream,
    /// From the context to the call of the user's function.
    call: C,
    /// From what is to be done to the closure that the table calls.
    shim: S,
}

impl<C: Fn(TokenStream) -> TokenStream, S: Fn(TokenStream) -> TokenStream> Definition<C, S> {
    fn expand(&self, hook: &Hook<'_>) -> TokenStream {
        let Definition { at, path, method, call, shim } = self;
        let of = |pick: fn(&Arguments) -> bool| {
            [Some(hook.arguments), hook.inherited].into_iter().flatten().find(|arguments| pick(arguments))
        };
        let ord = of(|it| it.ord.is_some()).and_then(|it| it.ord.as_ref());
        let ord = ord.map_or_else(|| quote!(0), |ord| quote!(#ord));
        let only = of(|it| !it.only.is_empty()).map_or(&[][..], |it| &it.only).iter().map(|phase| {
            let (at, here) = (located(at, phase.span()), ours(phase.span()));
            quote_spanned!(here=> .only(::trainer::__private::phase_of::<#at, ::trainer::phase::#phase>()))
        });
        let every = of(|it| it.every.is_some()).and_then(|it| it.every);

        let at_context = located(at, hook.context);
        let run = Ident::new("__run", ours(hook.context));
        let context = quote_spanned!(hook.context=> ::trainer::__private::context_at::<#at_context, _>(#run));
        let call = call(context);
        // A name of its own, so that a wrong type is reported where the user wrote it.
        let returned = Ident::new("__returned", hook.output);
        let outcome = quote_spanned!(hook.output=> ::trainer::__private::outcome(#returned));
        let run = quote!({
            let #returned = #call;
            #outcome
        });
        let (body, every) = match every {
            None => (run, None),
            Some((n, span)) => {
                let (at_key, here) = (located(at, span), ours(span));
                (
                    quote!(if ::trainer::__private::due::<#at>(__run, #n) #run else { ::core::result::Result::Ok(()) }),
                    Some(quote_spanned!(here=> .every(::trainer::__private::every_of::<#at_key>(#n)))),
                )
            }
        };
        let shim = shim(body);
        let docs = hook.function.first_doc_line();
        let line = line_of(&hook.function.signature.ident);
        let at_name =
            located(at, hook.point.segments.last().map_or_else(Span::call_site, |it| it.ident.span()));
        quote! {
            ::trainer::__private::HookDef::new::<#at_name>(
                ::trainer::__private::Origin {
                    module: ::core::module_path!(),
                    path: ::trainer::__private::Cow::Borrowed(#path),
                    method: #method,
                    version: ::core::option_env!("CARGO_PKG_VERSION"),
                    file: ::core::file!(),
                    line: #line,
                    docs: #docs,
                },
                { const __ORD: ::core::primitive::i32 = #ord; __ORD },
                #shim,
            )
            #(#only)*
            #every
        }
    }
}

/// The same name, reported as if it stood there.
fn located(name: &Ident, span: Span) -> Ident {
    Ident::new(&name.to_string(), ours(span))
}

/// The macro's own tokens, reported as if they stood there. rustc points at a part of an expression
/// only if all of it comes from one place.
fn ours(span: Span) -> Span {
    Span::call_site().located_at(span)
}

fn path_of(name: &str) -> TokenStream {
    quote!(::core::concat!(::core::module_path!(), "::", #name))
}

fn last_word(self_type: &Type) -> String {
    match self_type {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.unraw().to_string()),
        _ => None,
    }
    .unwrap_or_else(|| quote!(#self_type).to_string())
}

/// The line of a name; `line!()` would give the line of the attribute, the same for a whole block.
fn line_of(name: &Ident) -> u32 {
    if !proc_macro::is_available() {
        return 0;
    }
    u32::try_from(name.span().unwrap().line()).unwrap_or(0)
}
