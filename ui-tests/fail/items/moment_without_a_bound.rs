use trainer::prelude::*;

struct Timer<P>(std::marker::PhantomData<fn(P)>, u64);

#[hook]
impl<P> Timer<P> {
    fn time(&mut self, _: &Cx<P>) {
        self.1 += 1;
    }
}

fn main() {}
