use trainer::prelude::*;

struct Scaled;

#[hook]
impl Scaled {
    fn scaled(&mut self, cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        next.run(cx)
    }
}

fn main() {}
