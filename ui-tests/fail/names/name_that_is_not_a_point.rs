use trainer::prelude::*;

#[hook(ord = 3)]
fn report(_: &mut Cx<AfterStep>) {}

struct Watch;

#[hook]
impl Watch {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {}
    fn swap(&mut self, _: &mut Cx<AfterValid>) {}
}

fn main() {}
