//! Every form of a hook and every key of `#[hook(…)]`.

#![deny(rust_2018_idioms, unsafe_code, missing_docs)]

use trainer::Cx;
use trainer::lifecycle::{AfterStep, Backward, BeforeStep};
use trainer::prelude::{Next, hook};

#[hook]
fn after_step(_: &mut Cx<AfterStep>) {}

#[hook(ord = -3 * 2, only(train, valid), every = 10)]
pub(crate) fn named(_: &mut Cx<BeforeStep>) -> Result<(), String> {
    Ok(())
}

#[hook(ord = i32::MIN)]
fn by_path(_: &mut trainer::Cx<trainer::AfterStep>) -> trainer::Result<()> {
    Ok(())
}

macro_rules! many {
    ($($name:ident)*) => {$(
        #[hook]
        fn $name(_: &mut Cx<AfterStep>) {}
    )*};
}

many! { one two three }

macro_rules! typed {
    ($name:ident, $context:ty) => {
        #[hook]
        fn $name(_: $context) {}
    };
}

typed!(by_type, &mut Cx<AfterStep>);

#[hook]
fn r#match(_: &mut Cx<AfterStep>) {}

/** A block comment
 * of two lines. */
#[hook]
#[cfg(any())]
fn never(_: &mut Cx<Missing>) {}

/// A generic hook type.
pub struct Monitor<'a, T: 'a, const N: usize>
where
    T: Copy,
{
    seen: [Option<T>; N],
    lifetime: std::marker::PhantomData<&'a ()>,
}

#[hook(ord = Self::ORD + 1, before = optional(Monitor<'static, u8, 3>))]
impl<T: Copy + Send + 'static, const N: usize> Monitor<'static, T, N> {
    /// The value.
    pub const ORD: i32 = N as i32;

    /// An associated constant.
    pub const SIZE: usize = N;

    /// An ordinary method.
    pub fn count(&self) -> usize {
        self.seen.iter().flatten().count()
    }

    /// A hook by shared reference.
    fn after_step(&self, _: &mut Cx<AfterStep>) {}

    /// A hook that is not compiled.
    #[cfg(any())]
    fn before_step(&mut self, _: &mut Cx<Missing>) {}

    /// An attribute whose arguments contain the word "hook".
    #[cfg_attr(all(), doc = "webhook")]
    #[trainer::hook]
    fn by_path(&mut self, _: &mut Cx<BeforeStep>) {}

    /// A hook with a name that is not a point.
    #[hook(ord = 90)]
    fn late(&mut self, _: &mut Cx<AfterStep>) -> Result<(), std::fmt::Error> {
        Ok(())
    }
}

/// A hook that selects modules by its fields.
pub struct Selected {
    modules: trainer::modules::Patterns,
    name: &'static str,
}

#[hook]
impl Selected {
    #[hook(of("encoder.*", optional("head")), every = 2)]
    fn after_module_forward(&mut self, _: &mut Cx<trainer::AfterModuleForward>) {}

    #[hook(of = self.modules)]
    fn around(
        &mut self,
        cx: &mut Cx<trainer::ModuleForward>,
        next: Next<'_, trainer::ModuleForward>,
    ) -> trainer::Result<trainer::Done> {
        next.run(cx)
    }

    #[hook(of(self.name))]
    fn own_name(&mut self, _: &mut Cx<trainer::BeforeModuleForward>) {}
}

#[hook(of = optional("encoder.fc1"), only = train)]
fn after_module_backward(_: &mut Cx<trainer::AfterModuleBackward>) {}

mod reexported {
    pub(crate) use ::trainer as training;
}

#[hook(crate = reexported::training, ord = 1, only = train, every = 2)]
fn from_elsewhere(_: &mut Cx<trainer::Main<AfterStep>>) {}

/// A hook type whose value the trainer creates.
#[derive(Default)]
pub struct Made;

#[hook(auto, single, crate = reexported::training, after(from_elsewhere, optional(trainer::hooks::Progress)))]
impl Made {
    /// A hook after a function of this crate, and after the progress bar if there is one.
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}

    /// A hook around every second run of an operation.
    #[hook(every = 2, before = optional(around_by_path))]
    fn around(
        &self,
        cx: &mut Cx<Backward>,
        next: Next<'_, Backward>,
    ) -> Result<trainer::Done, trainer::Error> {
        next.run(cx)
    }
}

/// Words that are also the names of keys, and an alias with the name of the context.
pub mod words {
    use trainer::{AfterStep, hook};

    const fn every(n: u64) -> u64 {
        n
    }

    fn holds<P>(_: &trainer::Cx<P>) -> bool {
        true
    }

    /// A context.
    pub type Cx = trainer::Cx<AfterStep>;

    #[hook(every = every(2), ord = self::ord(5), when = holds::<AfterStep>)]
    fn hooked(_: &Cx) {}

    const fn ord(n: i32) -> i32 {
        n
    }

    /// A hook with a number in parentheses.
    pub struct Numbered(u64);

    #[hook]
    impl Numbered {
        #![allow(unused_mut)]
        //! Two hooks.

        #[hook(every = (self.0))]
        fn one(&mut self, _: &mut Cx) {}

        #[hook(every = Self::every())]
        fn two(&mut self, _: &Cx) {}
    }

    impl Numbered {
        const fn every() -> u64 {
            3
        }
    }
}

#[hook(more, crate = reexported::training)]
impl Made {
    /// A hook in a second block.
    fn after_epoch(&mut self, _: &Cx<trainer::AfterEpoch>) {}
}

#[hook]
fn around_by_path(
    cx: &mut Cx<trainer::Backward>,
    next: trainer::Next<'_, Backward>,
) -> trainer::Result<trainer::Done> {
    next.run_then(cx, |cx| cx.log("done", 1.0))
}

/// A lifecycle in a nested module.
pub mod own {
    trainer::lifecycle! {
        within step {
            /// An operation with an operation inside.
            operation look: batch + loss in train counts batches {
                /// An operation that inherits nouns.
                operation deeper: gradients {
                    /// A point within two operations.
                    point at_bottom: stop;
                }
                again pred;
                again trainer::at::loss;
            }
        }

        /// A custom value.
        exists sight: HasSight from before_deeper to after_look;
    }
}

/// A lifecycle that extends another.
pub mod further {
    trainer::lifecycle! {
        within super::own::at::look {
            /// A point whose nouns are paths.
            point at_end: trainer::has::loss + super::own::has::sight;
        }
        /// Without `within`: it can be fired from anywhere.
        point anywhere in train | valid;
    }
}

/// Lifecycles that a macro writes, with doc comments that rustc evaluates.
pub mod written_by_a_macro {
    macro_rules! look {
        ($name:ident, $($about:tt)*) => {
            trainer::lifecycle! {
                within step {
                    #[doc = $($about)*]
                    operation $name {
                        #[doc = concat!("Within `", stringify!($name), "`.")]
                        /// It is over.
                        point at_end;
                    }
                }
            }
        };
    }
    look!(look, concat!("Looks at ", 3, " rows."));
    const fn about<P: trainer::moment::Moment>() -> &'static [u8] {
        P::INFO.docs.as_bytes()
    }
    const _: () = assert!(matches!(about::<Look>(), b"Looks at 3 rows."));
    const _: () = assert!(matches!(about::<AtEnd>(), b"Within `look`. It is over."));

    /// A doc comment of several lines.
    pub mod from_a_file {
        look!(read, include_str!("../../LICENSE-MIT"));
    }
}

/// A lifecycle that refers to the trainer crate by another path.
pub mod elsewhere {
    trainer::lifecycle! {
        crate = super::reexported::training;
        within step {
            /// An operation with a point inside.
            operation other_look: batch {
                /// A point that fires in one phase.
                point at_moment in train;
            }
        }
        /// A custom value.
        exists other: HasOther from other_look to at_moment;
    }
}

#[hook(crate = reexported::training)]
fn moment(_: &mut Cx<elsewhere::AtMoment>) {}

#[hook(only = train)]
fn reaches(cx: &mut Cx<trainer::AfterEpoch>) -> trainer::Result<()> {
    cx.fire::<further::Anywhere>()
}

#[hook]
fn reaches_the_end(cx: &mut Cx<own::AfterDeeper>) -> trainer::Result<()> {
    cx.fire::<further::AtEnd>()
}

#[hook(every = 3, only = train)]
fn bottom(cx: &mut Cx<own::AtBottom>) -> Result<(), trainer::Error> {
    cx.stop("seen");
    let _ = (cx.loss(), cx.grad("a")?, cx.batch::<u8>()?);
    Ok(())
}

fn main() {
    fn inner() {
        #[hook]
        fn within_a_function(_: &mut Cx<BeforeStep>) {}
    }
    inner();
}
