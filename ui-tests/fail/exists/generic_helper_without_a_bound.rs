use trainer::prelude::*;

fn loss_of<P>(cx: &Cx<P>) -> Tensor {
    cx.loss()
}

fn gradients_of<P: trainer::moment::AtPoint>(cx: &Cx<P>) -> usize {
    cx.grads().count()
}

fn main() {}
