use trainer::prelude::*;

fn is_late(cx: &Cx<AfterStep>) -> bool {
    cx.counters().epoch > 1
}

#[hook(cond = is_late)]
fn after_step(_: &Cx<AfterStep>) {}

fn main() {}
