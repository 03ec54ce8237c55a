use trainer::prelude::*;

#[hook(register_forward_hook)]
fn log(cx: &mut Cx<AfterModuleForward>) {
    cx.log("one", 1.0);
}

fn main() {}
