use trainer::prelude::*;

#[hook]
fn when_the_moon_is_full(_: &mut Cx<AfterStep>) {}

fn main() {}
