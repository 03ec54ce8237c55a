use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        self.note(cx);
    }
    fn note(&mut self, cx: &mut Cx<AfterStep>) {
        drop(vec![Self::other(self, cx)]);
    }
    #[hook(ord = 1)]
    fn other(&self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
