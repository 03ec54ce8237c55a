//! The library of the package of integration tests, which are in `it/`.

use trainer::prelude::*;

/// A hook that the program of the same name does not link.
#[hook]
pub fn before_fit(_: &mut Cx<BeforeFit>) {}

/// The code in the README, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
