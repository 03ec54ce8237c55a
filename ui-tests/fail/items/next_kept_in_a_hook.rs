use trainer::prelude::*;

struct Keeps(Option<Next<Backward>>);

#[hook]
impl Keeps {
    #[hook(around = backward)]
    fn keep(&mut self, _: &mut Cx<Backward>, next: Next<Backward>) {
        self.0 = Some(next);
    }
}

fn main() {}
