//! Checks of the type of a payload that only its tokens can decide. rustc checks that it is `Send`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{GenericArgument, Lifetime, PathArguments, Token, Type, TypeParamBound, parse_quote};

use crate::errors::Errors;

/// Reports a type that cannot be a payload: one that borrows, that has no size, or that is not
/// named. Returns the type that the message advises, so that code that uses the payload compiles.
pub(super) fn owned(mut written: Type, errors: &mut Errors) -> Type {
    let advised: Type = match &written {
        Type::ImplTrait(unnamed) => boxed(&unnamed.bounds),
        Type::TraitObject(unsized_) => boxed(&unsized_.bounds),
        Type::Slice(slice) => {
            let element = &slice.elem;
            parse_quote!(::std::vec::Vec<#element>)
        }
        Type::Path(path) if path.path.is_ident("str") => parse_quote!(::std::string::String),
        Type::Infer(word) => {
            errors.push(word.span(), "expected the type of the payload, which cannot be inferred");
            return parse_quote!(());
        }
        _ => {
            let mut found = None;
            make_static(&mut written, &mut |lifetime| {
                found.get_or_insert(lifetime);
            });
            if let Some(span) = found {
                errors.push(
                    span,
                    "a payload cannot borrow, because the run stores it while its hooks are called: own the data, or borrow for \
                     `'static`",
                );
            }
            return written;
        }
    };
    let text = advised.to_token_stream().to_string().replace(' ', "");
    let text = text.replace("::std::boxed::", "").replace("::std::vec::", "").replace("::std::string::", "");
    let text = text.replace("dyn", "dyn ").replace('+', " + ");
    errors.push(
        written.span(),
        format!("the run stores a payload, so it is a value of one type with a known size: write `{text}`"),
    );
    advised
}

/// Returns whether a type has a lifetime other than `'static`, with or without a name.
pub(crate) fn borrows(written: &Type) -> bool {
    let mut found = false;
    make_static(&mut written.clone(), &mut |_| found = true);
    found
}

/// Returns `Box<dyn … + Send>` for these bounds.
fn boxed(bounds: &Punctuated<TypeParamBound, Token![+]>) -> Type {
    let is_send = |bound: &TypeParamBound| matches!(bound, TypeParamBound::Trait(one) if one.path.segments.last().is_some_and(|last| last.ident == "Send"));
    let send: Option<TokenStream> = (!bounds.iter().any(is_send)).then(|| quote!(+ Send));
    parse_quote!(::std::boxed::Box<dyn #bounds #send>)
}

/// Makes the lifetimes in a type `'static`, and calls `found` with the location of each that was
/// not. Does not look into the types of functions, which may have lifetimes of their own.
fn make_static(written: &mut Type, found: &mut impl FnMut(proc_macro2::Span)) {
    let replace = |lifetime: &mut Lifetime, found: &mut dyn FnMut(proc_macro2::Span)| {
        if lifetime.ident != "static" {
            found(lifetime.span());
            *lifetime = Lifetime::new("'static", lifetime.span());
        }
    };
    match written {
        Type::Reference(reference) => {
            match &mut reference.lifetime {
                Some(lifetime) => replace(lifetime, found),
                None => {
                    let span = reference.and_token.span();
                    found(span);
                    reference.lifetime = Some(Lifetime::new("'static", span));
                }
            }
            make_static(&mut reference.elem, found);
        }
        Type::Path(path) => {
            for segment in &mut path.path.segments {
                let PathArguments::AngleBracketed(arguments) = &mut segment.arguments else { continue };
                for argument in &mut arguments.args {
                    match argument {
                        GenericArgument::Lifetime(lifetime) => replace(lifetime, found),
                        GenericArgument::Type(inner) => make_static(inner, found),
                        _ => {}
                    }
                }
            }
        }
        Type::Tuple(tuple) => tuple.elems.iter_mut().for_each(|element| make_static(element, found)),
        Type::Array(array) => make_static(&mut array.elem, found),
        Type::Group(group) => make_static(&mut group.elem, found),
        Type::Paren(paren) => make_static(&mut paren.elem, found),
        _ => {}
    }
}
