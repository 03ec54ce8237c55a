//! Advice is tested by following it: each message is about code, and has code that must then expand
//! without a further message. `ui-tests/pass/advice.rs` compiles the code of all messages.

use std::str::FromStr;

use proc_macro2::TokenStream;

use super::expand;

const AT_POINT: &str = "fn x(cx: &mut Cx<AfterStep>) {}";
const AT_MODULE: &str = "fn x(cx: &mut Cx<AfterModuleForward>) {}";
const AROUND: &str = "fn x(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> { next.run(cx) }";
const BLOCK: &str = "impl X { fn x(&mut self, cx: &mut Cx<AfterStep>) {} }";

/// An attribute with a mistake, its item, the advice in the message, and the attribute and the item
/// that follow the advice.
type Case = (&'static str, &'static str, &'static str, &'static str, &'static str);

const CASES: &[Case] = &[
    // Words for a phase.
    ("train_only", AT_POINT, "write `only = train`", "only = train", AT_POINT),
    ("valid", AT_POINT, "write `only = valid`", "only = valid", AT_POINT),
    ("test", AT_POINT, "write `only = test`", "only = test", AT_POINT),
    ("predict", AT_MODULE, "write `only = predict`", "only = predict", AT_MODULE),
    ("eval", BLOCK, "write `only = valid`", "only = valid", BLOCK),
    ("training = true", AT_POINT, "write `only = train`", "only = train", AT_POINT),
    ("only = validation", AT_POINT, "did you mean `valid`?", "only = valid", AT_POINT),
    ("only = Phase::Train", AT_POINT, "write `only = train`", "only = train", AT_POINT),
    ("phase = train", AT_POINT, "did you mean `only`?", "only = train", AT_POINT),
    // Lists.
    ("of = \"a\", \"b\"", AT_MODULE, "write `of(\"a\", \"b\")`", "of(\"a\", \"b\")", AT_MODULE),
    (
        "of = \"a\", optional(\"b\"), \"c\", ord = 1",
        AT_MODULE,
        "write `of(\"a\", optional(\"b\"), \"c\")`",
        "of(\"a\", optional(\"b\"), \"c\"), ord = 1",
        AT_MODULE,
    ),
    ("only = train, valid", AT_POINT, "write `only(train, valid)`", "only(train, valid)", AT_POINT),
    ("after = a, b::c", AT_POINT, "write `after(a, b::c)`", "after(a, b::c)", AT_POINT),
    ("before = A, B, C", AT_POINT, "write `before(A, B, C)`", "before(A, B, C)", AT_POINT),
    ("in = A, stages::B", AT_POINT, "write `in(A, stages::B)`", "in(A, stages::B)", AT_POINT),
    ("only = [train, valid]", AT_POINT, "`only(<phase>, …)`", "only(train, valid)", AT_POINT),
    // Other words for a key.
    ("steps = 10", AT_POINT, "did you mean `every`?", "every = 10", AT_POINT),
    ("priority = 3", AT_POINT, "did you mean `ord`?", "ord = 3", AT_POINT),
    ("evry = 3", AT_POINT, "did you mean `every`?", "every = 3", AT_POINT),
    ("stateful", BLOCK, "did you mean `state`?", "state", BLOCK),
    ("stateful", AT_POINT, "the similar key `state` goes on an `impl` block", "state", BLOCK),
    ("\"ord\" = 3", AT_POINT, "`ord = …`", "ord = 3", AT_POINT),
    ("ord: 3", AT_POINT, "write `ord = …`", "ord = 3", AT_POINT),
    ("every = 10 steps", AT_POINT, "remove `steps`", "every = 10", AT_POINT),
    ("Clipping", AT_POINT, "write `in = <set>`", "in = Clipping", AT_POINT),
    // Words that belong in the signature.
    ("main_only", AROUND, "remove `main_only`", "", AROUND),
    (
        "main_only",
        AT_POINT,
        "remove `main_only`, and take `&Cx<Main<AfterStep>>`",
        "",
        "fn x(cx: &Cx<Main<AfterStep>>) {}",
    ),
    (
        "epoch",
        AT_POINT,
        "remove `epoch`, and take `&mut Cx<BeforeEpoch>` or `&mut Cx<AfterEpoch>`",
        "",
        "fn x(cx: &mut Cx<AfterEpoch>) {}",
    ),
    ("after_epoch", AT_POINT, "and take `&mut Cx<AfterEpoch>`", "", "fn x(cx: &mut Cx<AfterEpoch>) {}"),
    ("around = backward", AT_POINT, "take `cx: &mut Cx<Backward>, next: Next<Backward>`", "", AROUND),
    // Signatures.
    ("", "fn x(cx: Cx<AfterStep>) {}", "write `&Cx<…>`", "", "fn x(cx: &Cx<AfterStep>) {}"),
    ("", "fn x(cx: At<'_>) {}", "`cx: &mut Cx<…>`", "", AT_POINT),
    ("", "async fn x(cx: &Cx<AfterStep>) {}", "remove `async`", "", "fn x(cx: &Cx<AfterStep>) {}"),
    (
        "",
        "impl X { fn x(&mut self, cx: At<'_>) {} }",
        "write that reference in the method, `&Cx<…>` or `&mut Cx<…>`",
        "",
        BLOCK,
    ),
    (
        "",
        "impl X { fn x(&mut self, cx: &At) {} }",
        "add `#[hook]` to the method",
        "",
        "impl X { #[hook] fn x(&mut self, cx: &At) {} }",
    ),
    ("", "fn x(cx: &Cx<AfterStep>) -> Option<Self> { None }", "with `&mut self` or `&self` first", "", BLOCK),
    (
        "",
        "impl X { fn on_train_end(&mut self) {} }",
        "takes after `self`: `cx: &mut Cx<AfterFit>`",
        "",
        "impl X { fn on_train_end(&mut self, cx: &mut Cx<AfterFit>) {} }",
    ),
];

fn expanded(attribute: &str, item: &str) -> String {
    let tokens = |text| TokenStream::from_str(text).unwrap();
    expand(tokens(attribute), &tokens(item)).to_string()
}

#[test]
fn advice_that_is_followed_leads_to_no_further_error() {
    for (attribute, item, advice, followed, item_then) in CASES {
        let text = expanded(attribute, item).replace("\\\"", "\"");
        assert!(text.contains(advice), "`#[hook({attribute})] {item}`: no `{advice}` in {text}");
        assert_eq!(text.matches("compile_error").count(), 1, "`#[hook({attribute})] {item}`: {text}");
        let text = expanded(followed, item_then);
        assert!(!text.contains("compile_error"), "`#[hook({followed})] {item_then}`: {text}");
    }
}

#[test]
fn a_word_that_is_far_from_every_key_is_not_taken_for_one() {
    for word in ["log", "name", "stop", "sync", "run", "enabled", "load", "optional", "skip", "last", "once"]
    {
        for attribute in [word.to_owned(), format!("{word} = 1")] {
            let text = expanded(&attribute, AT_POINT);
            assert!(
                !text.contains("did you mean") && !text.contains("is a name from"),
                "`{attribute}`: {text}"
            );
            assert!(text.contains("expected one of"), "`{attribute}`: {text}");
        }
    }
}
