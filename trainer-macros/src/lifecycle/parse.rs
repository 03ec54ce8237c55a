//! The grammar of `lifecycle!`.
//!
//! ```text
//! declaration  := ( `crate` `=` path `;` )?
//!                 ( node | availability | `within` operation by? `{` node* `}` )*
//! by           := `by` hook-or-task (`|` hook-or-task)*
//! node         := docs `point` name payload? has? phases? counts? `;`
//!               | docs `operation` name has? phases? counts? `computes`? ( `;` | `{` node* `}` )
//!               | `again` operation-or-point `;`
//! payload      := `(` type `)`
//! has          := `:` noun (`+` noun)*
//! phases       := `in` phase (`|` phase)*
//! counts       := `counts` (`batches` | `steps` | `epochs` | `records`)
//! availability := docs `exists` noun `:` trait spans `;`
//!               | docs `exist` noun `:` trait spans `;`
//!               | docs `allows` method `:` trait `except`? spans `;`
//! spans        := ( `from` moment `to` moment (`except` operation)? | `at` moment ),*
//! ```
//!
//! - `crate` is the path of the `trainer` crate.
//! - With `by`, only the listed tasks and hooks may reach the nodes.
//! - `payload` is the type of the value that a hook or a task passes when it fires the point.
//! - `again` repeats a subtree that is declared elsewhere.
//! - `has` lists nouns, which name what exists at the node and at its children.
//! - `has`, `in`, `counts` and `computes` can be in any order. `in` and `counts` default to the
//!   parent's.
//! - `computes` marks an operation that computes with the task itself; a custom one always may.
//! - `exists` is for a singular noun, `exist` for a plural one.
//! - With `except`, a method is allowed everywhere else, including in custom lifecycles.
//!
//! An operation after `within` is a path, or a name in `trainer::at`; after `again` it can also be
//! a name in this declaration. A noun after `:` is a path, or a name in `trainer::has`.

use proc_macro2::Ident;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Path, Token, Type, braced, parenthesized, token};

use crate::krate::Krate;

mod word {
    syn::custom_keyword!(point);
    syn::custom_keyword!(operation);
    syn::custom_keyword!(again);
    syn::custom_keyword!(within);
    syn::custom_keyword!(by);
    syn::custom_keyword!(counts);
    syn::custom_keyword!(computes);
    syn::custom_keyword!(exists);
    syn::custom_keyword!(exist);
    syn::custom_keyword!(allows);
    syn::custom_keyword!(from);
    syn::custom_keyword!(to);
    syn::custom_keyword!(at);
    syn::custom_keyword!(except);
    syn::custom_keyword!(OnAllRanks);
}

/// A parsed `lifecycle!`.
pub(super) struct Declaration {
    /// `crate = path`: the path of the `trainer` crate.
    pub(super) krate: Option<Path>,
    pub(super) nodes: Vec<Node>,
    pub(super) extensions: Vec<Extension>,
    pub(super) availabilities: Vec<Availability>,
}

/// `within operation { … }`: nodes that extend an operation of another lifecycle.
pub(super) struct Extension {
    pub(super) operation: Path,
    /// The only tasks and hooks that may reach the nodes; empty if any may.
    pub(super) by: Vec<Path>,
    pub(super) nodes: Vec<Node>,
}

/// A node of the tree.
pub(super) enum Node {
    Point(Head),
    Operation(Head, Vec<Node>),
    /// A subtree that is declared elsewhere and also runs here.
    Again(Path),
}

/// The common fields of a point and an operation.
pub(super) struct Head {
    pub(super) docs: Vec<Attribute>,
    pub(super) name: Ident,
    /// The type of a point's payload.
    pub(super) payload: Option<Type>,
    /// The nouns listed after `:`, which name what exists at this node and its children.
    pub(super) has: Vec<Path>,
    pub(super) phases: Option<Vec<Ident>>,
    pub(super) counts: Option<Ident>,
    /// Whether the operation itself computes with the task.
    pub(super) computes: bool,
}

/// Something that exists only at some moments, or a method that can be called only at some moments.
pub(super) struct Availability {
    pub(super) docs: Vec<Attribute>,
    pub(super) kind: AvailabilityKind,
    pub(super) what: Ident,
    pub(super) has: Ident,
    /// Whether the method is for hooks on all ranks only: `allows fire: CanFire + OnAllRanks`. The
    /// trait then implies `OnAllRanks`.
    pub(super) on_all_ranks: bool,
    /// Whether the thing or method is available everywhere except in the spans.
    pub(super) except: bool,
    pub(super) spans: Vec<Span>,
}

/// The keyword of an availability (`exists`, `exist` or `allows`), which determines the wording of
/// its messages. For `allows`, the messages do not distinguish *not yet* from *gone*.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum AvailabilityKind {
    Singular,
    Plural,
    Allowed,
}

/// An inclusive range of moments, in the order of the tree.
pub(super) struct Span {
    pub(super) first: Ident,
    pub(super) last: Ident,
    /// An operation to exclude, along with the points before and after it and everything within it.
    pub(super) except: Option<Ident>,
}

impl Declaration {
    /// Returns the path of the `trainer` crate.
    pub(super) fn trainer(&self) -> Path {
        self.krate.clone().unwrap_or_else(|| {
            let trainer = Krate::of(None).at(proc_macro2::Span::call_site());
            syn::parse_quote!(#trainer)
        })
    }
}

impl Parse for Declaration {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut krate = None;
        if input.parse::<Option<Token![crate]>>()?.is_some() {
            input.parse::<Token![=]>()?;
            krate = Some(input.call(Path::parse_mod_style)?);
            input.parse::<Token![;]>()?;
        }
        let mut nodes = Vec::new();
        let mut extensions = Vec::new();
        let mut availabilities = Vec::new();
        while !input.is_empty() {
            if input.peek(word::within) {
                input.parse::<word::within>()?;
                let operation = input.call(Path::parse_mod_style)?;
                let mut by = Vec::new();
                if input.parse::<Option<word::by>>()?.is_some() {
                    by.push(input.call(Path::parse_mod_style)?);
                    while input.parse::<Option<Token![|]>>()?.is_some() {
                        by.push(input.call(Path::parse_mod_style)?);
                    }
                }
                extensions.push(Extension { operation, by, nodes: nodes_in_braces(input)? });
                continue;
            }
            if input.peek(Token![crate]) {
                return Err(input.error("`crate = …;` comes first, before the moments"));
            }
            let docs = input.call(Attribute::parse_outer)?;
            let next = input.lookahead1();
            if next.peek(word::exists) || next.peek(word::exist) || next.peek(word::allows) {
                availabilities.push(Availability::parse(docs, input)?);
            } else if next.peek(word::point) || next.peek(word::operation) || next.peek(word::again) {
                nodes.push(Node::parse(docs, input)?);
            } else {
                not_nested(input)?;
                next.peek(word::within); // so that the error lists it
                return Err(next.error());
            }
        }
        Ok(Declaration { krate, nodes, extensions, availabilities })
    }
}

impl Node {
    fn parse(docs: Vec<Attribute>, input: ParseStream<'_>) -> syn::Result<Self> {
        let next = input.lookahead1();
        if next.peek(word::again) {
            input.parse::<word::again>()?;
            let name = input.call(Path::parse_mod_style)?;
            input.parse::<Token![;]>()?;
            return Ok(Node::Again(name));
        }
        if next.peek(word::point) {
            input.parse::<word::point>()?;
            let head = Head::parse(docs, input)?;
            if input.peek(token::Brace) {
                return Err(input.error(format!(
                    "a point is an instant and cannot contain other moments: write `operation {0}`, or `point {0};`",
                    head.name
                )));
            }
            if input.peek(Token![=]) {
                return Err(input.error(format!(
                    "expected `:` before the values that exist at the point: `point {}: loss;`",
                    head.name
                )));
            }
            input.parse::<Token![;]>()?;
            return Ok(Node::Point(head));
        }
        if input.peek(word::exists) || input.peek(word::exist) || input.peek(word::allows) {
            return Err(input.error("`exists` and `allows` go next to the tree, not inside it"));
        }
        if input.peek(word::within) {
            return Err(input.error(
                "`within` goes next to the tree, not inside it: what is written here is within this operation already",
            ));
        }
        if !next.peek(word::operation) {
            not_nested(input)?;
            return Err(next.error());
        }
        input.parse::<word::operation>()?;
        let head = Head::parse(docs, input)?;
        if input.peek(token::Brace) {
            return Ok(Node::Operation(head, nodes_in_braces(input)?));
        }
        input.parse::<Token![;]>()?;
        Ok(Node::Operation(head, Vec::new()))
    }
}

/// Reports a lifecycle within a lifecycle.
fn not_nested(input: ParseStream<'_>) -> syn::Result<()> {
    let path = input.fork().call(Path::parse_mod_style);
    match path.as_ref().map(|path| path.segments.last()) {
        Ok(Some(last)) if last.ident == "lifecycle" => Err(input.error(
            "a lifecycle cannot contain another: write the operations and points of the inner one here, without `lifecycle!`",
        )),
        _ => Ok(()),
    }
}

fn nodes_in_braces(input: ParseStream<'_>) -> syn::Result<Vec<Node>> {
    let inner;
    braced!(inner in input);
    let mut nodes = Vec::new();
    while !inner.is_empty() {
        nodes.push(Node::parse(inner.call(Attribute::parse_outer)?, &inner)?);
    }
    Ok(nodes)
}

impl Head {
    fn parse(docs: Vec<Attribute>, input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse()?;
        let payload = if input.peek(token::Paren) {
            let inner;
            parenthesized!(inner in input);
            let payload = inner.parse()?;
            if !inner.is_empty() {
                return Err(
                    inner.error("a payload has a single type: for several values, use a struct or a tuple")
                );
            }
            Some(payload)
        } else {
            None
        };
        let mut has = Vec::new();
        let mut phases = None;
        let mut counts = None;
        let mut computes = false;
        // Each at most once, in any order.
        loop {
            if has.is_empty() && input.parse::<Option<Token![:]>>()?.is_some() {
                has.push(input.call(Path::parse_mod_style)?);
                while input.parse::<Option<Token![+]>>()?.is_some() {
                    has.push(input.call(Path::parse_mod_style)?);
                }
                no_comma(input, "+")?;
            } else if phases.is_none() && input.parse::<Option<Token![in]>>()?.is_some() {
                let mut listed = vec![input.parse()?];
                while input.parse::<Option<Token![|]>>()?.is_some() {
                    listed.push(input.parse()?);
                }
                no_comma(input, "|")?;
                phases = Some(listed);
            } else if counts.is_none() && input.parse::<Option<word::counts>>()?.is_some() {
                counts = Some(input.parse()?);
            } else if !computes && input.parse::<Option<word::computes>>()?.is_some() {
                computes = true;
            } else {
                break;
            }
        }
        Ok(Head { docs, name, payload, has, phases, counts, computes })
    }
}

/// Reports a comma in a list whose items are separated by something else.
fn no_comma(input: ParseStream<'_>, separator: &str) -> syn::Result<()> {
    if input.peek(Token![,]) {
        return Err(input.error(format!("expected `{separator}`, not a comma, before another name")));
    }
    Ok(())
}

impl Availability {
    fn parse(docs: Vec<Attribute>, input: ParseStream<'_>) -> syn::Result<Self> {
        let kind = if input.parse::<Option<word::exists>>()?.is_some() {
            AvailabilityKind::Singular
        } else if input.parse::<Option<word::exist>>()?.is_some() {
            AvailabilityKind::Plural
        } else {
            input.parse::<word::allows>()?;
            AvailabilityKind::Allowed
        };
        let what = input.parse()?;
        input.parse::<Token![:]>()?;
        let has = input.parse()?;
        let on_all_ranks = kind == AvailabilityKind::Allowed && input.parse::<Option<Token![+]>>()?.is_some();
        if on_all_ranks {
            input.parse::<word::OnAllRanks>()?;
        }
        let except = input.parse::<Option<word::except>>()?.is_some();
        let mut spans = Vec::new();
        loop {
            if input.parse::<Option<word::at>>()?.is_some() {
                let first: Ident = input.parse()?;
                spans.push(Span { last: first.clone(), first, except: None });
            } else {
                input.parse::<word::from>()?;
                let first = input.parse()?;
                input.parse::<word::to>()?;
                let last = input.parse()?;
                let except = input.parse::<Option<word::except>>()?.map(|_| input.parse()).transpose()?;
                spans.push(Span { first, last, except });
            }
            if input.parse::<Option<Token![,]>>()?.is_none() {
                break;
            }
        }
        input.parse::<Token![;]>()?;
        Ok(Availability { docs, kind, what, has, on_all_ranks, except, spans })
    }
}
