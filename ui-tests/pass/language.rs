//! Everything that an attribute can say, and the forms of a hook.

#![deny(rust_2018_idioms, unsafe_code, missing_docs)]

use trainer::Cx;
use trainer::lifecycle::{AfterStep, BeforeStep};
use trainer::prelude::hook;

#[hook]
fn after_step(_: &mut Cx<AfterStep>) {}

#[hook(before_step, ord = -3 * 2, only(train, valid), every = 10)]
pub(crate) fn named(_: &mut Cx<BeforeStep>) -> Result<(), String> {
    Ok(())
}

#[hook(trainer::at::after_step, ord = i32::MIN)]
fn by_path(_: &mut trainer::Cx<trainer::AfterStep>) -> trainer::Result<()> {
    Ok(())
}

macro_rules! many {
    ($($name:ident)*) => {$(
        #[hook(after_step)]
        fn $name(_: &mut Cx<AfterStep>) {}
    )*};
}

many! { one two three }

macro_rules! typed {
    ($name:ident, $context:ty) => {
        #[hook(after_step)]
        fn $name(_: $context) {}
    };
}

typed!(by_type, &mut Cx<AfterStep>);

#[hook(after_step)]
fn r#match(_: &mut Cx<AfterStep>) {}

/** A block comment
 * of two lines. */
#[hook(after_step)]
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

#[hook(ord = 10)]
impl<T: Copy + Send + 'static, const N: usize> Monitor<'static, T, N> {
    /// An associated constant is left alone.
    pub const SIZE: usize = N;

    /// So is an ordinary method.
    pub fn count(&self) -> usize {
        self.seen.iter().flatten().count()
    }

    /// A hook by shared reference.
    fn after_step(&self, _: &mut Cx<AfterStep>) {}

    /// A hook that is not compiled.
    #[cfg(any())]
    fn before_step(&mut self, _: &mut Cx<Missing>) {}

    /// A word that merely holds "hook" is no attribute of ours.
    #[cfg_attr(all(), doc = "webhook")]
    #[trainer::hook(before_step)]
    fn by_path(&mut self, _: &mut Cx<BeforeStep>) {}

    /// A hook under its own name.
    #[hook(after_step, ord = 90)]
    fn late(&mut self, _: &mut Cx<AfterStep>) -> Result<(), std::fmt::Error> {
        Ok(())
    }
}

fn main() {
    fn inner() {
        #[hook(before_step)]
        fn within_a_function(_: &mut Cx<BeforeStep>) {}
    }
    inner();
}
