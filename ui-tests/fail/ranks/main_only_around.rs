use trainer::prelude::*;

#[hook(around = backward, main_only)]
fn time(cx: &mut Cx<Main<Backward>>, next: Next<Main<Backward>>) -> Result<Done> {
    next.run(cx)
}

struct Timer;

#[hook(main_only)]
impl Timer {
    #[hook(around = opt_step)]
    fn time(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        next.run(cx)
    }
}

fn main() {}
