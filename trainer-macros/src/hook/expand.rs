//! From checked hooks to registrations.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Type;

use super::check::{Checked, Hook};

pub(super) fn expand(checked: &Checked<'_>) -> TokenStream {
    let registration = match checked {
        Checked::Free(hooks) => hooks.iter().map(free).collect(),
        Checked::Block(block, hooks) => {
            let points = hooks.iter().enumerate().map(|(index, hook)| {
                let (alias, point) = (alias(index), &hook.point);
                quote!(type #alias = #point;)
            });
            let self_type = &block.self_type;
            let type_name = last_word(self_type);
            let definitions =
                hooks.iter().enumerate().map(|(index, hook)| method(hook, &alias(index), &type_name));
            let (impl_generics, _, where_clause) = block.generics.split_for_impl();
            quote! {
                #(#points)*
                impl #impl_generics ::trainer::__private::Hooks for #self_type #where_clause {
                    const HOOKS: &'static [::trainer::__private::HookDef] = &[#(#definitions),*];
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
    let path = path_of(&name.to_string());
    let definition = definition(
        hook,
        &at,
        &path,
        &quote!(::core::option::Option::None),
        |context| quote!(|__run, _| #context),
        &quote!(#name),
        None,
    );
    quote! {
        type #at = #point;
        ::trainer::__private::inventory::submit! { ::trainer::__private::Discovered(#definition) }
    }
}

fn method(hook: &Hook<'_>, at: &Ident, type_name: &str) -> TokenStream {
    let name = &hook.function.signature.ident;
    let word = name.to_string();
    let path = path_of(type_name);
    definition(
        hook,
        at,
        &path,
        &quote!(::core::option::Option::Some(#word)),
        |context| quote!(|__run, __slot| ::trainer::__private::lend::<Self>(__run, __slot, |__hook, __run| #context)),
        &quote!(Self::#name),
        Some(quote!(__hook,)),
    )
}

/// The constant that describes one hook and how to call it.
fn definition(
    hook: &Hook<'_>,
    at: &Ident,
    path: &TokenStream,
    method: &TokenStream,
    shim: impl FnOnce(TokenStream) -> TokenStream,
    function: &TokenStream,
    receiver: Option<TokenStream>,
) -> TokenStream {
    let of = |pick: fn(&super::Arguments) -> bool| {
        [Some(hook.arguments), hook.inherited].into_iter().flatten().find(|arguments| pick(arguments))
    };
    let ord = of(|it| it.ord.is_some())
        .and_then(|it| it.ord.as_ref())
        .map_or_else(|| quote!(0), |ord| quote!(#ord));
    let only = of(|it| !it.only.is_empty()).map_or(&[][..], |it| &it.only).iter().map(|phase| {
        let span = phase.span();
        quote_spanned!(span=> .only::<#at, ::trainer::phase::#phase>())
    });
    let every = of(|it| it.every.is_some()).and_then(|it| it.every);

    let make_context = quote_spanned!(hook.context=> ::trainer::__private::context_at::<#at, _>(__run));
    let call = quote!(#function(#receiver #make_context));
    let outcome = quote_spanned!(hook.output=> ::trainer::__private::outcome(#call));
    let (body, every) = match every {
        None => (outcome, None),
        Some((n, span)) => (
            quote!(if ::trainer::__private::due::<#at>(__run, #n) { #outcome } else { ::core::result::Result::Ok(()) }),
            Some(quote_spanned!(span=> .every::<#at>(#n))),
        ),
    };
    let shim = shim(body);
    let docs = hook.function.first_doc_line();
    let line = line_of(&hook.function.signature.ident);
    quote! {
        ::trainer::__private::HookDef::new::<#at>(
            ::trainer::__private::Origin {
                path: #path,
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

fn path_of(name: &str) -> TokenStream {
    quote!(::core::concat!(::core::module_path!(), "::", #name))
}

fn last_word(self_type: &Type) -> String {
    match self_type {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
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
