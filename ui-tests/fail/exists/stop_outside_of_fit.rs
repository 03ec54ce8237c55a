use trainer::prelude::*;

#[hook]
fn before_test(cx: &mut Cx<BeforeTest>) {
    cx.stop("bored");
}

fn main() {}
