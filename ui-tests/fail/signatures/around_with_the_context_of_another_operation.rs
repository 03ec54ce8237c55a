use trainer::prelude::*;

struct Scaled;

#[hook]
impl Scaled {
    #[hook(around = backward)]
    fn scaled(&mut self, cx: &mut Cx<Loss>, next: Next<Backward>) {}
}

fn main() {}
