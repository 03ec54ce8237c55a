use trainer::prelude::*;

#[hook(may_fail)]
fn clip(_: &mut Cx<AfterBackward>) {}

struct Logger;

#[hook(may_fail)]
impl Logger {
    fn after_record(&mut self, _: &Cx<AfterRecord>) {}

    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}

    fn around(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.run(cx)
    }
}

fn main() {}
