use trainer::prelude::*;

#[hook]
fn teardown(cx: &mut Cx<Teardown>) {
    cx.error();
}

fn main() {}
