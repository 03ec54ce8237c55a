use trainer::prelude::*;

struct Watch;

#[hook]
impl Watch {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        self.report(cx);
    }
    fn report(&self, _: &Cx<AfterStep>) {}
}

fn main() {}
