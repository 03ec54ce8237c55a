use trainer::prelude::*;

#[hook(when = |cx| cx.is_main())]
fn note(_: &Cx<AfterStep>) {}

fn main() {}
