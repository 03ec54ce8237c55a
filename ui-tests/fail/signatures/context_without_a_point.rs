//! `Cx` without its point.

use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx) {}

fn main() {}
