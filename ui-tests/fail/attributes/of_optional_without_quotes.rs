use trainer::prelude::*;

#[hook(of = optional(encoder))]
fn norm(cx: &Cx<AfterModuleForward>) {
    cx.log("norm", cx.output().norm());
}

fn main() {}
