use trainer::prelude::*;

#[hook]
fn before_module(cx: &mut Cx<BeforeModule>) {
    println!("{:?}", cx.output());
}

fn main() {}
