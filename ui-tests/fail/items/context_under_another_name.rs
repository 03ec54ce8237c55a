use trainer::Cx as Context;
use trainer::moment::AtPoint;
use trainer::prelude::*;

type Whole<'a> = &'a mut Cx<AfterEpoch>;

struct Names(u64);

#[hook]
impl Names {
    fn after_step(&mut self, _: &Cx<AfterStep>) {
        self.0 += 1;
    }

    fn renamed(&mut self, _: &mut Context<AfterEpoch>) {}

    fn alias_of_the_reference(&mut self, _: Whole<'_>) {}

    fn later(&self, digits: usize, _: &Cx<AfterStep>) -> usize {
        digits
    }

    fn without_self(_: &Context<AfterStep>) {}

    fn helper(&self, scale: f64, values: &Tensor) -> Tensor {
        values * scale
    }
}

struct Generic<P, T>(std::marker::PhantomData<fn(P)>, T);

#[hook]
impl<P: AtPoint, T: Clone> Generic<P, T> {
    fn count(&mut self, _: &Cx<P>) {}

    fn renamed(&mut self, _: &Context<P>) {}

    fn helper(&self, other: &T) -> T {
        other.clone()
    }
}

fn main() {}
