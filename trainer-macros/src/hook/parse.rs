//! Parses the annotated item: full signatures, but function bodies as raw tokens, so that
//! half-typed bodies are accepted.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote};
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{Attribute, Generics, Meta, ReturnType, Signature, Token, Type, Visibility, braced, token};

use super::arguments::{Arguments, On};
use crate::docs::{self, Line};
use crate::errors::Errors;
use crate::keys::split_at_commas;
use crate::lints::{allowed, is_deprecated};

/// The annotated item.
pub(super) enum Item {
    Function(Box<Function>),
    Block(Box<Block>),
    /// Any other item, with its keyword.
    Other(Ident, TokenStream),
}

/// A function or method.
pub(super) struct Function {
    pub(super) attributes: Vec<Attribute>,
    visibility: Visibility,
    default: Option<Ident>,
    pub(super) signature: Signature,
    pub(super) body: TokenStream,
}

/// An impl block.
pub(super) struct Block {
    attributes: Vec<Attribute>,
    before_impl: TokenStream,
    pub(super) impl_token: Token![impl],
    pub(super) generics: Generics,
    /// `Trait for`, if the block implements a trait.
    pub(super) of_trait: Option<TokenStream>,
    pub(super) self_type: Type,
    /// The attributes within the braces: `#![allow(…)]`, `//! …`.
    inner: Vec<Attribute>,
    pub(super) members: Vec<Member>,
}

/// A member of an impl block.
pub(super) enum Member {
    Method(Box<Method>),
    /// A macro call: the macro's path, and the whole call.
    Macro(syn::Path, TokenStream),
    Other(TokenStream),
}

/// A method of a block, with its own `#[hook(…)]` if it has one.
pub(super) struct Method {
    pub(super) function: Function,
    pub(super) hook: Option<Arguments>,
}

impl Item {
    /// Parses the item.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokens do not have the outline of an item.
    pub(super) fn parse(tokens: TokenStream, errors: &mut Errors) -> syn::Result<Self> {
        let unchanged = tokens.clone();
        let parse = |input: ParseStream<'_>| {
            let attributes = input.call(Attribute::parse_outer)?;
            if starts_function(input) {
                let (hooks, attributes): (Vec<_>, Vec<_>) = attributes.into_iter().partition(is_hook);
                for second in hooks {
                    errors.push(
                        second.path().span(),
                        "duplicate `#[hook]`: write all keys in one attribute, or a second function for another hook",
                    );
                }
                return Function::parse(attributes, input).map(|function| Item::Function(Box::new(function)));
            }
            if input.peek(Token![impl]) || input.peek(Token![unsafe]) && input.peek2(Token![impl]) {
                return Block::parse(attributes, input, errors).map(|block| Item::Block(Box::new(block)));
            }
            let _: Visibility = input.parse()?;
            let word = input.call(syn::ext::IdentExt::parse_any)?;
            input.parse::<TokenStream>()?;
            Ok(Item::Other(word, unchanged))
        };
        parse.parse2(tokens)
    }
}

impl Function {
    fn parse(attributes: Vec<Attribute>, input: ParseStream<'_>) -> syn::Result<Self> {
        let visibility = input.parse()?;
        let default = take_default(input)?;
        let signature = input.parse()?;
        let body = if input.peek(token::Brace) {
            input.parse::<TokenTree>()?.into_token_stream()
        } else {
            input.parse::<Token![;]>()?.into_token_stream()
        };
        Ok(Function { attributes, visibility, default, signature, body })
    }

    /// Returns whether the return type is `!`.
    pub(super) fn never_returns(&self) -> bool {
        matches!(&self.signature.output, ReturnType::Type(_, returned) if matches!(peeled(returned), Type::Never(_)))
    }

    /// Expands to the text of the doc comment, up to its first empty line. A doc attribute with a
    /// macro call, as in `#[doc = concat!(…)]`, is evaluated by rustc.
    pub(super) fn docs(&self) -> TokenStream {
        let lines = docs::lines(&self.attributes);
        let is_empty = |line: &Line| line.text().is_some_and(|text| text.trim().is_empty());
        let lines = lines.into_iter().skip_while(is_empty).take_while(|line| !is_empty(line));
        docs::joined(&lines.collect::<Vec<_>>(), "\n")
    }

    /// Returns the `#[allow(…)]`s that the registration of the function needs.
    pub(super) fn allowed(&self) -> TokenStream {
        allowed(&self.attributes)
    }

    fn is_deprecated(&self) -> bool {
        is_deprecated(&self.attributes)
    }

    /// Returns the `#[cfg(…)]`s of the function, including those in a `cfg_attr`, because its
    /// registration needs the same conditions.
    pub(super) fn cfg(&self) -> impl Iterator<Item = TokenStream> {
        self.attributes.iter().filter_map(|attribute| conditions(&attribute.meta)).map(|cfg| quote!(#[#cfg]))
    }

    /// Returns the function with these statements at the start of its body. Used to report errors
    /// in a method, because an impl block cannot contain other items next to the method.
    pub(super) fn reporting(&self, statements: &TokenStream) -> TokenStream {
        let Function { attributes, visibility, default, signature, body } = self;
        quote!(#(#attributes)* #visibility #default #signature { #statements #body })
    }
}

impl Block {
    /// Returns whether the type of the block can implement `Hooks`, regardless of other mistakes.
    pub(super) fn can_be_hooks(&self) -> bool {
        self.of_trait.is_none()
            && borrowed(self).is_none()
            && !matches!(peeled(&self.self_type), Type::TraitObject(_))
            && !self.is_of_foreign_type()
    }

    /// Returns whether the type of the block is from another crate. rustc rejects such a block too.
    pub(super) fn is_of_foreign_type(&self) -> bool {
        is_foreign(&self.self_type)
    }

    /// Returns the `#[allow(…)]`s that the registration of the block needs.
    pub(super) fn allowed(&self) -> TokenStream {
        let methods = self.members.iter().filter_map(|member| match member {
            Member::Method(method) if method.function.is_deprecated() => Some(quote!(#[allow(deprecated)])),
            _ => None,
        });
        let own = allowed(&self.attributes);
        let of_methods = methods.take(1);
        quote!(#own #(#of_methods)*)
    }

    /// Returns whether the block has generic parameters.
    pub(super) fn is_generic(&self) -> bool {
        !self.generics.params.is_empty()
    }

    /// Returns whether a type parameter of the block does not occur in its type or its bounds.
    pub(super) fn has_unused_parameter(&self) -> bool {
        let bounds = self.generics.type_params().map(|parameter| parameter.bounds.to_token_stream());
        let clause = self.generics.where_clause.to_token_stream();
        let written = [self.self_type.to_token_stream(), clause].into_iter().chain(bounds);
        let written = written.flat_map(flattened);
        let words: Vec<String> = written.map(|token| token.to_string()).collect();
        self.generics.type_params().any(|parameter| !words.contains(&parameter.ident.to_string()))
    }

    fn parse(attributes: Vec<Attribute>, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Self> {
        let before_impl = input.parse::<Option<Token![unsafe]>>()?.into_token_stream();
        let impl_token = input.parse()?;
        let mut generics: Generics = if input.peek(Token![<]) { input.parse()? } else { Generics::default() };
        let mut of_trait = None;
        let mut self_type: Type = input.parse()?;
        if let Some(word) = input.parse::<Option<Token![for]>>()? {
            of_trait = Some(quote!(#self_type #word));
            self_type = input.parse()?;
        }
        generics.where_clause = input.parse()?;
        let inside;
        braced!(inside in input);
        let inner = inside.call(Attribute::parse_inner)?;
        let mut members = Vec::new();
        while !inside.is_empty() {
            members.push(Member::parse(&inside, errors)?);
        }
        Ok(Block { attributes, before_impl, impl_token, generics, of_trait, self_type, inner, members })
    }
}

impl Member {
    fn parse(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Self> {
        let ahead = input.fork();
        ahead.call(Attribute::parse_outer)?;
        if !starts_function(&ahead) {
            let mut item = input.parse::<syn::ImplItem>()?;
            if let syn::ImplItem::Const(syn::ImplItemConst { attrs, .. })
            | syn::ImplItem::Type(syn::ImplItemType { attrs, .. }) = &mut item
            {
                let hooks = attrs.extract_if(.., |attribute| is_hook(attribute));
                for hook in hooks {
                    errors.push(hook.path().span(), "in a block, `#[hook]` goes on a method");
                }
            }
            return Ok(match item {
                syn::ImplItem::Macro(call) => Member::Macro(call.mac.path.clone(), call.into_token_stream()),
                other => Member::Other(other.into_token_stream()),
            });
        }
        let attributes = input.call(Attribute::parse_outer)?;
        let (hooks, mut attributes): (Vec<_>, Vec<_>) = attributes.into_iter().partition(is_hook);
        if let Some(hidden) = attributes.iter().position(hides_hook) {
            let hidden = attributes.remove(hidden);
            errors.push(
                hidden.path().span(),
                "in a `#[hook]` block, a method's `#[hook]` cannot be in a `cfg_attr`: put `#[cfg(…)]` on the method",
            );
            let function = Function::parse(attributes, input)?;
            return Ok(Member::Method(Box::new(Method { function, hook: None })));
        }
        let function = Function::parse(attributes, input)?;
        let mut own = None;
        for attribute in hooks {
            let span =
                attribute.path().segments.last().map_or_else(Span::call_site, |segment| segment.ident.span());
            if own.is_some() {
                errors.push(
                    span,
                    "duplicate `#[hook]`: write all keys in one attribute, or a second method for another hook",
                );
                continue;
            }
            let tokens = match attribute.meta {
                Meta::List(list) => list.tokens,
                _ => TokenStream::new(),
            };
            own = Some(Arguments::parse(tokens, On::Method, errors));
        }
        Ok(Member::Method(Box::new(Method { function, hook: own })))
    }
}

/// Returns whether an attribute is `#[hook]`, by any path: `#[trainer::hook]`, `#[renamed::hook]`.
fn is_hook(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == "hook")
}

/// Reduces an attribute to its `cfg` conditions: `cfg(…)` is unchanged, and
/// `cfg_attr(…, cfg(…), inline)` loses `inline`.
fn conditions(meta: &Meta) -> Option<TokenStream> {
    let Meta::List(list) = meta else { return None };
    if meta.path().is_ident("cfg") {
        return Some(meta.to_token_stream());
    }
    if !meta.path().is_ident("cfg_attr") {
        return None;
    }
    let mut parts = split_at_commas(list.tokens.clone()).into_iter();
    let condition = parts.next()?;
    let inner: Vec<_> = parts.filter_map(|part| conditions(&syn::parse2(part).ok()?)).collect();
    (!inner.is_empty()).then(|| quote!(cfg_attr(#condition, #(#inner),*)))
}

/// Returns whether an attribute has the form `#[cfg_attr(…, hook(…))]`.
fn hides_hook(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    let mut words = list.tokens.clone().into_iter();
    attribute.path().is_ident("cfg_attr")
        && words.any(|token| matches!(token, TokenTree::Ident(word) if word == "hook"))
}

fn starts_function(input: ParseStream<'_>) -> bool {
    skip_to_fn(&input.fork()).unwrap_or(false)
}

/// Skips everything that may precede `fn`, and returns whether `fn` follows.
fn skip_to_fn(input: ParseStream<'_>) -> syn::Result<bool> {
    input.parse::<Visibility>()?;
    take_default(input)?;
    while input.peek(Token![const]) || input.peek(Token![async]) || input.peek(Token![unsafe]) {
        input.parse::<TokenTree>()?;
    }
    if input.parse::<Option<Token![extern]>>()?.is_some() {
        input.parse::<Option<syn::LitStr>>()?;
    }
    Ok(input.peek(Token![fn]))
}

/// Parses the contextual keyword `default` of specialization, which rustc itself rejects.
fn take_default(input: ParseStream<'_>) -> syn::Result<Option<Ident>> {
    let ahead = input.fork();
    if ahead.parse::<Ident>().is_ok_and(|word| word == "default") {
        input.parse().map(Some)
    } else {
        Ok(None)
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.append_all(&self.attributes);
        self.visibility.to_tokens(tokens);
        self.default.to_tokens(tokens);
        self.signature.to_tokens(tokens);
        self.body.to_tokens(tokens);
    }
}

/// Emits the block as the user wrote it, without the `#[hook]`s of its methods.
impl ToTokens for Block {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Block { attributes, before_impl, impl_token, generics, of_trait, self_type, inner, members } =
            self;
        let where_clause = &generics.where_clause;
        let members = members.iter().map(|member| match member {
            Member::Method(method) => method.function.to_token_stream(),
            Member::Macro(_, tokens) | Member::Other(tokens) => tokens.clone(),
        });
        tokens.extend(quote! {
            #(#attributes)* #before_impl #impl_token #generics #of_trait #self_type #where_clause {
                #(#inner)*
                #(#members)*
            }
        });
    }
}

impl ToTokens for Item {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Item::Function(function) => function.to_tokens(tokens),
            Item::Block(block) => block.to_tokens(tokens),
            Item::Other(_, unchanged) => unchanged.to_tokens(tokens),
        }
    }
}

/// Returns whether a type is from another crate, as far as its tokens show: a built-in type, such
/// as a slice or a reference, a name of the standard prelude, or a path of the standard library.
/// rustc rejects an inherent `impl` for such a type.
pub(super) fn is_foreign(written: &Type) -> bool {
    const NAMES: [&str; 22] = [
        "Vec", "String", "Option", "Result", "Box", "bool", "char", "str", "f32", "f64", "i8", "i16", "i32",
        "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize",
    ];
    match peeled(written) {
        Type::Slice(_)
        | Type::Array(_)
        | Type::Tuple(_)
        | Type::Ptr(_)
        | Type::FnPtr(_)
        | Type::Reference(_) => true,
        Type::Path(path) if path.qself.is_none() => {
            let segments = &path.path.segments;
            let first = segments[0].ident.to_string();
            match segments.len() {
                1 => path.path.leading_colon.is_none() && NAMES.contains(&&*first),
                _ => ["std", "core", "alloc"].contains(&&*first),
            }
        }
        _ => false,
    }
}

/// Returns the span of a lifetime other than `'static` in a block's type.
pub(super) fn borrowed(block: &Block) -> Option<Span> {
    let declared = block.generics.lifetimes().next().map(|parameter| parameter.lifetime.span());
    declared.or_else(|| {
        let mut tokens = flattened(block.self_type.to_token_stream());
        tokens.find(|token| token.to_string() == "_").map(|token| token.span())
    })
}

/// Returns the tokens outside of groups and in them, recursively.
pub(super) fn flattened(tokens: TokenStream) -> impl Iterator<Item = TokenTree> {
    fn of(token: TokenTree) -> Vec<TokenTree> {
        match token {
            TokenTree::Group(group) => group.stream().into_iter().flat_map(of).collect(),
            other => vec![other],
        }
    }
    tokens.into_iter().flat_map(of)
}

/// Removes parentheses, and the invisible group that a macro fragment `$context:ty` creates.
pub(super) fn peeled(written: &Type) -> &Type {
    match written {
        Type::Group(group) => peeled(&group.elem),
        Type::Paren(paren) => peeled(&paren.elem),
        other => other,
    }
}
