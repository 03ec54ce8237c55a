use trainer::prelude::*;

#[hook]
fn time(cx: &mut Cx<Main<Backward>>, next: Next<Backward>) -> Result<Done> {
    next.run(cx)
}

struct Timer;

#[hook]
impl Timer {
    #[hook(ord = 1)]
    fn time(&mut self, cx: &mut Cx<Main<OptStep>>, next: Next<Main<OptStep>>) -> Result<Done> {
        next.run(cx)
    }
}

fn main() {}
