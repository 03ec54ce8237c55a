//! A context type that names no point.

use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx) {}

fn main() {}
