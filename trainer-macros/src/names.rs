//! Tests that the names introduced by an expansion cannot clash with those of the user.

use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::batch::{self, Derived};
use crate::hook;
use crate::lifecycle::{self, Origin};

fn tokens(text: &str) -> TokenStream {
    TokenStream::from_str(text).unwrap()
}

/// Returns expansions of every form. Each comes with the names that it may introduce: those from
/// the user's item, and those that the documentation promises.
fn expansions() -> Vec<(TokenStream, &'static [&'static str])> {
    let hook = |attribute, item| hook::expand(tokens(attribute), &tokens(item));
    let lifecycle = "within step { /// A.\noperation look: batch in train { /// A.\npoint glance(u8): loss; } }
        /// A.\npoint far in train;
        /// A.\nexists sight: HasSight from before_look to after_look; /// A.\nallows stare: CanStare at glance;";
    let batch = "struct Pair<A, const N: usize> { a: [A; N], #[batch(skip)] b: A::B }";
    let rows = "struct Pair<A, const N: usize> { a: [A; N], b: A::B }";
    let moments = &[
        "look",
        "before_look",
        "after_look",
        "glance",
        "far",
        "Look",
        "BeforeLook",
        "AfterLook",
        "Glance",
        "Far",
        "HasSight",
        "CanStare",
        "SightWithin",
        "SightBegun",
        "SightKept",
        "sight",
        "stare",
        "Has",
        "Given",
        "Within",
        "Begun",
        "Kept",
        "at",
        "has",
        "declare_far_in_a_module_not_in_a_function",
        "a_module_has_one_lifecycle_so_write_both_in_one",
        "Before",
        "After",
        // In their own constant, as a value and as associated items.
        "MOMENTS",
        "INFO",
        "Payload",
        "index",
    ];
    vec![
        (
            hook(
                "ord = 1, only = train, every = 2, when = w, in = S, before = a, after = optional(b::C), crate = d::e",
                "fn late(cx: &mut Cx<Main<AfterStep>>) -> Result<()> { Ok(()) }",
            ),
            &["late"],
        ),
        (
            hook("of(\"x\"), every = 2", "fn scaled(cx: &mut Cx<A>, next: Next<A>) -> R { next.run(cx) }"),
            &["scaled"],
        ),
        (
            hook(
                "single, state, crate = d::e",
                "impl<T: A, const N: usize> X<T, N> { fn after_step(&mut self, cx: &mut Cx<AfterStep>) {}
                 #[hook(of = self.a, every = 3)] fn z(&self, cx: &mut Cx<M>, next: Next<M>) -> R { next.run(cx) } }",
            ),
            // And the items of the trait.
            &["after_step", "z", "T", "N", "SINGLE", "EXTRAS", "CHANGES", "Block", "__call"],
        ),
        (
            hook("auto", "impl X { fn after_step(&mut self, cx: &mut Cx<AfterStep>) {} }"),
            &["after_step", "CHANGES", "Block"],
        ),
        (lifecycle::expand(tokens(lifecycle), Origin::Custom), moments),
        (batch::expand(Derived::Batch, tokens(batch)), &["A", "N", "samples", "describe", "tensors", "tensors_mut", "try_clone"]),
        (batch::expand(Derived::Rows, tokens(rows)), &["A", "N", "rows", "slice", "select"]),
    ]
}

/// Adds to `found` the names of the items, variables, imports and generic parameters in tokens.
fn introduced(stream: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (nth, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            // Attributes introduce no names.
            let of_attribute = group.delimiter() == Delimiter::Bracket
                && nth.checked_sub(1).is_some_and(|nth| tokens[nth].to_string() == "#");
            if !of_attribute {
                introduced(group.stream(), found);
            }
        }
        let before = nth.checked_sub(1).map(|nth| tokens[nth].to_string()).unwrap_or_default();
        let word = token.to_string();
        let is_name = matches!(token, TokenTree::Ident(_)) && !["mut", "unsafe", "move"].contains(&&*word);
        let keywords =
            ["type", "fn", "static", "const", "mod", "enum", "struct", "trait", "let", "as", "use", "union"];
        // `use a::b` without `as` introduces the last name of a path; those are in the test's list.
        if is_name && keywords.contains(&&*before) && before != "use" && word != "_" {
            found.push(word);
        }
        let opens = ["impl", "for"].contains(&&*before)
            || nth.checked_sub(2).is_some_and(|nth| tokens[nth].to_string() == "fn");
        if token.to_string() == "<" && opens {
            found.extend(parameters(&tokens[nth + 1..]));
        }
    }
}

/// Returns the names of the generic parameters that are declared before the closing `>`.
fn parameters(tokens: &[TokenTree]) -> Vec<String> {
    let mut depth = 0;
    let mut begins = true;
    let mut names = Vec::new();
    for token in tokens {
        match token.to_string().as_str() {
            "<" => depth += 1,
            ">" if depth == 0 => break,
            ">" => depth -= 1,
            "," if depth == 0 => {
                begins = true;
                continue;
            }
            "const" | "'" => continue,
            word if begins && matches!(token, TokenTree::Ident(_)) => names.push(word.to_owned()),
            _ => {}
        }
        begins = false;
    }
    names
}

#[test]
fn names_that_an_expansion_introduces_cannot_clash_with_user_names() {
    for (expansion, of_user) in expansions() {
        let text = expansion.to_string();
        assert!(!text.contains("compile_error"), "{text}");
        let mut names = Vec::new();
        introduced(expansion, &mut names);
        assert!(names.iter().any(|name| name.starts_with("__")) || text.contains("data ::"), "{text}");
        for name in names {
            assert!(name.starts_with("__") || of_user.contains(&&*name), "`{name}` in {text}");
        }
    }
}

#[test]
fn names_of_the_expansion_are_refused_as_names_of_hooks() {
    for item in [
        "fn __shim(cx: &mut Cx<AfterStep>) {}",
        "impl __Self { fn after_step(&mut self, cx: &mut Cx<AfterStep>) {} }",
        "impl<__NTH: A> X<__NTH> { fn after_step(&mut self, cx: &mut Cx<AfterStep>) {} }",
        "impl<const __NTH: usize> X<__NTH> { fn after_step(&mut self, cx: &mut Cx<AfterStep>) {} }",
    ] {
        let text = hook::expand(tokens(""), &tokens(item)).to_string();
        assert_eq!(text.matches("reserved for the code that macros generate").count(), 1, "{text}");
    }
}

#[test]
fn names_without_a_marker_type_are_reported_once() {
    for (name, expected) in [
        ("self_", "`Self` is not a valid type name"),
        ("_1", "`1` is not a valid type name"),
        ("__", "`` is not a valid type name"),
        ("Loss", "expected a name in snake_case"),
    ] {
        let declaration = tokens(&format!("/// A.\npoint {name} in train;"));
        let text = lifecycle::expand(declaration, Origin::Custom).to_string();
        assert_eq!(text.matches("compile_error").count(), 1, "{text}");
        assert!(text.contains(expected), "{text}");
    }
    for (one, other) in [("a_b", "a__b"), ("点", "_点"), ("a_b", "a_b")] {
        let declaration = tokens(&format!("/// A.\npoint {one} in train; /// A.\npoint {other} in train;"));
        let text = lifecycle::expand(declaration, Origin::Custom).to_string();
        assert_eq!(text.matches("compile_error").count(), 1, "{text}");
    }
    let declaration = tokens("/// A.\npoint a in train; /// A.\nexists _1: HasOne at a;");
    let text = lifecycle::expand(declaration, Origin::Custom).to_string();
    assert_eq!(text.matches("compile_error").count(), 1, "{text}");
}
