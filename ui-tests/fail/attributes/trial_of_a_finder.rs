use trainer::prelude::*;

#[hook(trial = find_lr)]
fn on_a_function(cx: &mut Cx<AfterStep>) {
    cx.log("one", 1.0);
}

struct Once;

#[hook(trial = true, trial)]
impl Once {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
