use trainer::prelude::*;

struct Best {
    loss: f64,
    step: u64,
}

#[hook(state = (self.loss, self.step))]
impl Best {
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
        self.loss = cx.loss().double_value(&[]);
        self.step = cx.counters().optimizer_steps;
    }
}

#[hook(state = self.loss)]
fn free(_: &mut Cx<AfterStep>) {}

fn main() {}
