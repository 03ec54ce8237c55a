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
        cx.log("early", cx.counters().batches_seen);
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

/// A lifecycle of this crate's own, which any other can hook.
pub mod rounds {
    use trainer::prelude::*;

    trainer::lifecycle! {
        within step by Looks {
            /// A second look at the batch.
            operation second_look: batch + loss in train {
                /// Something was seen.
                point at_sight;
                again pred;
            }
        }
        within epoch by Looks | crate::nested::early {
            /// The epoch was good.
            point at_praise;
        }

        /// What was seen: [`Sight::seen`].
        exists sight: HasSight from at_sight to after_second_look;
    }

    /// Takes a second look at every batch of training.
    #[derive(Default)]
    pub struct Looks {
        /// How many it took.
        pub taken: u64,
        /// How many were skipped.
        pub skipped: u64,
    }

    #[hook(ord = 3)]
    impl Looks {
        #[hook(after_loss, only = train)]
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

    /// What can be read where something was seen.
    pub trait Sight {
        /// How many samples were seen.
        fn seen(&self) -> i64;
    }

    impl<P: HasSight + HasBatch> Sight for Cx<P> {
        fn seen(&self) -> i64 {
            self.batch::<(Tensor, Tensor)>().map_or(0, |(inputs, _)| inputs.size()[0])
        }
    }
}
