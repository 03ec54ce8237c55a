use trainer::prelude::*;

#[hook]
fn after_backward(_: &mut Cx<AfterStep>) {}

#[hook]
fn after_loss(_: &Cx<AfterPred>) {}

struct Watch;

#[hook]
impl Watch {
    fn setup(&mut self, _: &mut Cx<Main<BeforeFit>>) {}
    fn before_step(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        next.run(cx)
    }
}

fn main() {}
