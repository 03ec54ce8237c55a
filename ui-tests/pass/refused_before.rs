//! Unusual hooks that must compile.

#![deny(warnings)]
#![allow(dead_code)]

use trainer as renamed;
use trainer::prelude::*;

const A: i32 = 3;

/// Comparison and shift operators in `ord`, with another key after them.
#[hook(ord = if A < 4 { 1 } else { 2 }, only = train)]
fn less(_: &mut Cx<AfterStep>) {}

#[hook(ord = A << 4, only(train, valid))]
fn shifted(_: &mut Cx<AfterStep>) {}

/// A comma between generic arguments.
#[hook(ord = second::<u8, u16>(), after = optional(Mean<f32, 2>), every = 2)]
fn generic_arguments(_: &mut Cx<AfterStep>) {}

const fn second<T, U>() -> i32 {
    size_of::<(T, U)>() as i32
}

/// Hooks that never return.
#[hook(only = test)]
fn never(_: &Cx<AfterStep>) -> ! {
    panic!("on purpose")
}

struct Never;

#[hook(only = test)]
impl Never {
    fn after_step(&mut self, _: &Cx<AfterStep>) -> ! {
        panic!("on purpose")
    }
}

/// A deprecated hook, and a hook that refers to it.
#[deprecated]
#[hook]
fn old(_: &mut Cx<BeforeStep>) {}

#[hook(before = old)]
#[allow(deprecated)]
fn before_the_old_one(_: &mut Cx<BeforeStep>) {}

/// A deprecated type.
#[deprecated]
#[derive(Default)]
pub struct Old;

#[hook(auto)]
#[allow(deprecated)]
impl Old {
    #[deprecated]
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

/// A generic type without the bounds of a hook type.
pub struct Mean<T, const N: usize>([T; N]);

#[hook]
impl<T, const N: usize> Mean<T, N> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        let _ = &self.0;
    }
}

/// The attribute by another path, on a method too.
pub struct Renamed;

#[renamed::hook]
impl Renamed {
    #[renamed::hook(ord = 3)]
    fn late(&mut self, _: &mut Cx<AfterStep>) {}

    /// Excluded by a nested condition.
    #[cfg_attr(all(), cfg(any()), inline)]
    #[cfg_attr(all(), cfg_attr(not(any()), cfg(any())))]
    fn before_step(&mut self, _: &mut Cx<Missing>) {}

    /// Included by a nested condition.
    #[cfg_attr(all(), cfg(all()))]
    fn after_epoch(&mut self, _: &mut Cx<AfterEpoch>) {}
}

/// Names of primitive types with another meaning.
pub mod shadowed {
    #![allow(non_camel_case_types, dead_code)]

    struct usize;
    struct u32;
    struct i32;
    struct bool;
    struct str;

    trainer::lifecycle! {
        within step {
            /// An operation with a point inside.
            operation look: batch in train {
                /// A point that inherits the noun and the phase.
                point at_look;
            }
        }
        /// A custom value.
        exists sight: HasSight from before_look to at_look;
    }

    #[trainer::hook(ord = 3, every = 2)]
    fn seen(_: &mut trainer::Cx<AtLook>) {}
}

/// Closures that return nothing, a `Result`, or never.
pub fn closures<T: Task>(builder: trainer::TrainerBuilder<T>) -> trainer::TrainerBuilder<T> {
    fn named(cx: &mut Cx<AfterStep>) -> Result<()> {
        cx.log("a", 1.0);
        Ok(())
    }
    let (sender, _receiver) = std::sync::mpsc::channel();
    builder
        .on::<AfterStep>("unit", |cx| println!("{}", cx.step_loss().is_some()))
        .on::<AfterStep>("statement", move |_| sender.send(1).unwrap_or_default())
        .on::<AfterBackward>("question mark", |cx| {
            let norm = cx.grad("weight")?.norm();
            cx.log("norm", norm);
            Ok(())
        })
        .on::<AfterStep>("two errors", |cx| {
            std::fs::metadata("/")?;
            cx.batch::<u8>()?;
            Ok(())
        })
        .on::<AfterStep>("match", |cx| match cx.phase() {
            Phase::Train => cx.batch::<u8>().map(drop),
            _ => Err(Error::msg("not here")),
        })
        .on::<AfterStep>("never", |_| panic!("on purpose"))
        .on::<AfterStep>(String::from("function"), named)
        .on::<AfterStep>(HookOptions::named("options").ord(-3).only(Phase::Train).every(10), |_| {})
}

fn main() {}
