use trainer::prelude::*;

enum Keeps {
    Nothing,
    This(Next<Backward>),
}

#[hook]
impl Keeps {
    #[hook]
    fn keep(&mut self, _: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
        *self = Keeps::This(next);
        Err(Error::msg("kept"))
    }
}

fn main() {}
