use trainer::prelude::*;

struct Loss;

struct Halved;

#[hook]
fn around(cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
    next.run(cx)
}

#[hook]
impl Halved {
    fn halve(&self, cx: &mut Cx<Loss>, next: Next<Loss>) -> Result<Done> {
        next.run_or(cx, |_, _| {})
    }
}

fn main() {}
