//! Hooks that the tests name: `use plugin as _;`.

#![deny(rust_2018_idioms)]
#![forbid(unsafe_code)]

use trainer::prelude::*;

/// Says that an epoch is over.
#[hook(ord = 7)]
fn after_epoch(cx: &mut Cx<AfterEpoch>) {
    cx.log("plugin", 1.0);
}

/// Nested modules have paths of their own.
pub mod nested {
    use trainer::prelude::*;

    /// Runs early, each second step of training.
    #[hook(before_step, ord = -5, only = train, every = 2)]
    pub fn early(cx: &mut Cx<BeforeStep>) {
        cx.log("early", cx.step().global_step);
    }
}

/// What the prelude's names are used for otherwise changes nothing for a hook.
pub mod shadowed {
    #![allow(dead_code, missing_docs)]

    use trainer::prelude::{AfterFit, Cx, hook};

    struct Result;
    struct Option;
    struct String;
    struct Box;
    struct Vec;
    mod core {}
    mod std {}

    #[hook(ord = 3)]
    pub(crate) fn after_fit(_: &mut Cx<AfterFit>) -> ::std::result::Result<(), ::std::io::Error> {
        Ok(())
    }
}
