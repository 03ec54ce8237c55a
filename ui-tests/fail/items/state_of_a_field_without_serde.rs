use trainer::prelude::*;

struct Best {
    progress: Progress,
}

struct Progress {
    loss: f64,
}

#[hook(state = self.progress)]
impl Best {
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
        self.progress.loss = self.progress.loss.min(cx.loss().double_value(&[]));
    }
}

fn main() {}
