use trainer::prelude::*;

#[hook(main_only(true))]
fn log(cx: &mut Cx<Main<AfterStep>>) {
    cx.log("one", 1.0);
}

fn main() {}
