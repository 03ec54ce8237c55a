use trainer::prelude::*;

struct Largest(Tensor);

#[hook(state = self.0)]
impl Largest {
    fn after_loss(&mut self, cx: &mut Cx<AfterLoss>) {
        self.0 = self.0.maximum(&cx.loss());
    }
}

fn main() {}
