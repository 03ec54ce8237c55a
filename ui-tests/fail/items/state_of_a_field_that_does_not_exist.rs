use trainer::prelude::*;

struct Best {
    loss: f64,
}

#[hook(state = self.lost)]
impl Best {
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
        self.loss = self.loss.min(cx.loss().double_value(&[]));
    }
}

fn main() {}
