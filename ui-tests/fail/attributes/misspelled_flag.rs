use trainer::prelude::*;

#[hook(main_onyl)]
fn log(cx: &mut Cx<AfterStep>) {
    cx.log("one", 1.0);
}

fn main() {}
