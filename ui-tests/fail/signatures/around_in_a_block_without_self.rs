use trainer::prelude::*;

struct Scaled;

#[hook]
impl Scaled {
    #[hook(around = backward)]
    fn scaled(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.run(cx)
    }
}

fn main() {}
