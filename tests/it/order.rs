//! Which hook comes first.

use std::sync::{Arc, Mutex};

use trainer::prelude::*;

use crate::model;

struct First;
struct Second(Arc<Mutex<Vec<&'static str>>>);

#[hook(ord = -1)]
impl First {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {}
    #[hook(ord = 2)]
    fn after_fit(&mut self, _: &mut Cx<AfterFit>) {}
}

#[hook(ord = { const BASE: i32 = trainer::ord::PROGRESS; BASE - 4 })]
impl Second {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {
        self.0.lock().unwrap().push("second");
    }
    /// Another method at the same moment.
    #[hook(before_fit, ord = -7)]
    fn early(&mut self, _: &mut Cx<BeforeFit>) {
        self.0.lock().unwrap().push("early");
    }
    fn after_fit(&mut self, _: &mut Cx<AfterFit>) {}
}

#[test]
fn lower_ord_first_then_explicit_ones_as_added_then_discovered_ones() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let calls = Arc::clone(&calls);
        move |_: &mut Cx<BeforeFit>| calls.lock().unwrap().push(name)
    };
    let mut trainer = Trainer::builder(model::task())
        .optimizer(Sgd::new(0.1))
        .discover(Discover::crates(["it"]))
        .without("it::hooks::counted")
        .on::<BeforeFit>("b", note("b"))
        .try_on::<BeforeFit, _>("last", 3, note("last"))
        .hook(Second(Arc::clone(&calls)))
        .on::<BeforeFit>("a", note("a"))
        .hook(First)
        .build()
        .unwrap();
    let table = trainer.describe_hooks();
    let expected = [
        "it::order::Second::early",
        "it::order::First",
        "b",
        "a",
        "it::order::discovered",
        "it::order::Second",
        "last",
    ];
    assert_eq!(table.at("before_fit"), expected);
    assert_eq!(table.at("after_fit"), ["it::order::Second", "it::order::First"]);

    trainer.fit(&mut model::rows(4), None).unwrap();
    assert_eq!(*calls.lock().unwrap(), ["early", "b", "a", "second", "last"], "dispatched as described");
}

#[hook(before_fit)]
fn discovered(_: &mut Cx<BeforeFit>) {}
