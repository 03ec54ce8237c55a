use trainer::prelude::*;

struct Watch;

#[hook(odr = 3)]
impl Watch {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

#[hook(after = Watch)]
fn late(_: &mut Cx<AfterStep>) {}

fn add(builder: trainer::TrainerBuilder<impl Task>) {
    let _ = builder.hook(Watch);
}

fn main() {}
