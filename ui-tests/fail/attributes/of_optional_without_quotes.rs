use trainer::prelude::*;

#[hook(of = optional(encoder))]
fn norm(cx: &Cx<AfterModule>) {
    cx.log("norm", cx.output().norm());
}

fn main() {}
