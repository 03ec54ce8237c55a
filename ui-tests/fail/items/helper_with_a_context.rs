use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        self.note(cx);
    }
    fn note(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
