use trainer::prelude::*;

fn wait<P>(cx: &Cx<P>) -> Result<()> {
    cx.world().barrier("end")
}

#[hook]
fn after_step(cx: &mut Cx<AfterStep>) -> Result<()> {
    wait(cx)
}

fn main() {}
