use trainer::prelude::*;

fn observe(tensor: &Tensor) -> Result<()> {
    tensor.on_grad(|grad| grad.numel()).map(drop)
}

fn main() {}
