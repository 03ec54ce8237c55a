//! Hooks that are linked into the tests: `use plugin as _;`.

#![deny(rust_2018_idioms)]
#![forbid(unsafe_code)]

use trainer::prelude::*;

/// Logs `plugin` after each epoch.
#[hook(ord = 7)]
fn after_epoch(cx: &mut Cx<AfterEpoch>) {
    cx.log("plugin", 1.0);
}

/// A nested module, which is part of its hooks' paths.
pub mod nested {
    use trainer::prelude::*;

    /// Logs `early` before every second training batch.
    #[hook(ord = -5, only = train, every = 2)]
    pub fn early(cx: &mut Cx<BeforeStep>) {
        cx.log("early", cx.counters().batches_seen);
    }
}

/// A module that shadows names of the prelude, which does not affect its hooks.
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

/// A custom lifecycle, which other crates can hook.
pub mod rounds {
    use trainer::prelude::*;

    trainer::lifecycle! {
        within step by Looks {
            /// A second look at the batch.
            operation second_look: batch + loss in train {
                /// During the second look.
                point at_sight;
                again pred;
            }
        }
        within epoch by Looks | crate::nested::early {
            /// After each training epoch.
            point at_praise;
        }

        /// The number of samples seen: [`Sight::seen`].
        exists sight: HasSight from at_sight to after_second_look;
    }

    /// Takes a second look at every training batch.
    #[derive(Default)]
    pub struct Looks {
        /// The number of second looks taken.
        pub taken: u64,
        /// The number of second looks skipped by other hooks.
        pub skipped: u64,
    }

    #[hook(ord = 3)]
    impl Looks {
        #[hook(only = train)]
        fn look(&mut self, cx: &mut Cx<AfterLoss>) -> Result<()> {
            let took_place = cx.run::<SecondLook>(|cx| cx.fire::<AtSight>())?;
            if took_place {
                self.taken += 1;
            } else {
                self.skipped += 1;
            }
            Ok(())
        }
        fn after_train_epoch(&mut self, cx: &mut Cx<AfterTrainEpoch>) -> Result<()> {
            cx.fire::<AtPraise>()
        }
    }

    /// Access to the number of samples seen.
    pub trait Sight {
        /// Returns the number of samples seen.
        fn seen(&self) -> i64;
    }

    impl<P: HasSight + HasBatch> Sight for Cx<P> {
        fn seen(&self) -> i64 {
            self.batch::<(Tensor, Tensor)>().map_or(0, |(inputs, _)| inputs.size()[0])
        }
    }
}

/// The hooks that end a step.
pub struct Endings;

impl HookSet for Endings {}

/// Points with payloads.
pub mod drafts {
    use trainer::prelude::*;

    trainer::lifecycle! {
        within step by Drafts {
            /// A text was written.
            point written(Draft): batch in train;
            /// Two values were measured.
            point measured((f64, Vec<Tensor>));
        }
    }

    /// A text that hooks read and revise.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Draft {
        /// The text.
        pub text: String,
        /// How often it was revised.
        pub revisions: u32,
    }

    /// Fires both points after each training batch.
    #[derive(Debug, Default)]
    pub struct Drafts {
        /// What the hooks made of the drafts.
        pub published: Vec<Draft>,
        /// The measured values.
        pub measured: f64,
    }

    #[hook(only = train)]
    impl Drafts {
        fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
            let text = format!("draft {}", self.published.len());
            self.published.push(cx.fire_with::<Written>(Draft { text, revisions: 0 })?);
            self.measured += cx.fire_with::<Measured>((1.0, Vec::new()))?.0;
            Ok(())
        }
    }
}
