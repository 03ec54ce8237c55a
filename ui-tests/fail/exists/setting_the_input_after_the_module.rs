use trainer::prelude::*;

#[hook]
fn after_module(cx: &mut Cx<AfterModule>) {
    cx.set_input(Tensor::from(1.0));
}

fn main() {}
