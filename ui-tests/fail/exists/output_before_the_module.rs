use trainer::prelude::*;

#[hook]
fn before_module_forward(cx: &mut Cx<BeforeModuleForward>) {
    println!("{:?}", cx.output());
}

fn main() {}
