//! Fuzzing: for any input tokens, no macro panics or reports an empty message.

use std::str::FromStr;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::batch::Derived;
use crate::lifecycle::Origin;

/// The number of expansions.
const ROUNDS: usize = 100_000;

const ITEMS: &[&str] = &[
    "fn after_step(cx: &mut Cx<AfterStep>) -> Result<()> { cx. }",
    "#[hook(ord = 3)] pub(crate) async unsafe extern \"C\" fn x<T: A, 'a>(self, a: impl B, ...) where T: C;",
    "fn scaled(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> { next.run(cx) }",
    "impl<T: A> X<T> where T: B { const C: u8 = 3; #[hook(after_step, only(train))] fn y(&mut self, cx: Cx<Z>) {} }",
    "impl X { #[hook(after = Y)] fn z(&self, cx: &mut Cx<Loss>, next: Next<Loss>) {} fn new() -> Self { X } }",
    "impl X { fn f(&self, cx: &Cx<OnTrainEnd>) { self.f(cx); Self::g(); } fn g(&mut self, cx: &mut Cx<Main<Step>>, n: Next<Step>) {} }",
    "impl A for B { fn after_step(&self, cx: &mut trainer::Cx<AfterStep>) {} type C = D; e!(); }",
    "pub struct X { a: u8 }",
];

const ATTRIBUTES: &[&str] = &[
    "",
    "after_step, ord = -3 * 2, only(train, valid), every = 10",
    "ord = \"10\", order, = 3,, every()",
    "a::b::c, main_only, before = optional(d::E<f>), after(g, h::I)",
    "around = backward, on_epoch_end, in(trainer::stages::Display, Kit), in = 3, crate = a::b",
    "auto, single, every = 0, only = predict",
];

const DECLARATIONS: &[&str] = &[
    "/// A.\noperation a in train | valid counts batches { again b; /// C.\npoint c: loss + d::e; }",
    "within step { /// A.\npoint a: batch; } within x::y { /// B.\noperation b in train; }",
    "/// A.\noperation a in train; /// L.\nexists loss: HasLoss from before_a to after_a, at a; /// M.\nallows m: CanM at a;",
];

const STRUCTS: &[&str] = &[
    "#[batch(crate = a::b)] pub struct X<'a, T: A = u8, const N: usize> where T: B { #[batch(skip)] a: T::C, b: [T; N] }",
    "struct X<T>(#[batch(skip = 1, skip)] <T as A>::B, #[batch] pub Vec<T>, #[doc = \"d\"] (Tensor, u8));",
    "enum X { A { #[batch(skp)] a: u8 }, B(u8) } ",
    "union X { a: u8 } struct Y; struct Z {}",
];

#[test]
fn macros_never_panic_on_mutated_tokens_and_every_error_has_a_message() {
    let mut random = Random(1);
    let pools: Vec<Vec<TokenTree>> =
        [ITEMS, ATTRIBUTES, DECLARATIONS, STRUCTS].concat().into_iter().map(tokens).collect();
    for round in 0..ROUNDS {
        let mut changed = |from: &[&str]| {
            let mut tokens = tokens(from[random.below(from.len())]);
            for _ in 0..=random.below(3) {
                mutate(&mut tokens, &pools, &mut random);
            }
            tokens.into_iter().collect::<TokenStream>()
        };
        let expanded = match round % 6 {
            0 => crate::lifecycle::expand(changed(DECLARATIONS), Origin::Custom),
            1 => crate::batch::expand(Derived::Batch, changed(STRUCTS)),
            2 => crate::batch::expand(Derived::Rows, changed(STRUCTS)),
            _ => crate::hook::expand(changed(ATTRIBUTES), &changed(ITEMS)),
        };
        let text = expanded.to_string();
        let mut messages = text.split("compile_error ! (").skip(1);
        assert!(messages.all(|message| !message.trim_start().starts_with("\"\"")), "{text}");
    }
}

/// Removes, duplicates, swaps or replaces one token, at the top level or within a group. The
/// delimiter of that group may also change.
fn mutate(tokens: &mut Vec<TokenTree>, pools: &[Vec<TokenTree>], random: &mut Random) {
    if tokens.is_empty() {
        return;
    }
    let one = random.below(tokens.len());
    let other = random.below(tokens.len());
    if let TokenTree::Group(group) = &tokens[one]
        && random.below(4) > 0
    {
        let mut inside: Vec<_> = group.stream().into_iter().collect();
        mutate(&mut inside, pools, random);
        let delimiter = if random.below(20) == 0 { Delimiter::Bracket } else { group.delimiter() };
        tokens[one] = Group::new(delimiter, inside.into_iter().collect()).into();
        return;
    }
    match random.below(4) {
        0 => drop(tokens.remove(one)),
        1 => tokens.insert(other, tokens[one].clone()),
        2 => tokens.swap(one, other),
        _ => {
            let pool = &pools[random.below(pools.len())];
            if !pool.is_empty() {
                tokens[one] = pool[random.below(pool.len())].clone();
            }
        }
    }
}

fn tokens(text: &str) -> Vec<TokenTree> {
    TokenStream::from_str(text).expect("tokens").into_iter().collect()
}

/// Knuth's MMIX linear congruential generator: every test run makes the same changes.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end.max(1)
    }
}
