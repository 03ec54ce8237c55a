use trainer::prelude::*;

fn loss_of<P: HasLoss>(cx: &Cx<P>) -> Tensor {
    cx.loss()
}

#[hook]
fn before_fit(cx: &mut Cx<BeforeFit>) {
    loss_of(cx);
}

fn main() {}
