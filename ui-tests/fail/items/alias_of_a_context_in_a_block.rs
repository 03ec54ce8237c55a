use trainer::prelude::*;

type StepContext = Cx<AfterStep>;

struct Context;

struct Watch;

#[hook]
impl Watch {
    fn before_fit(&mut self, _: &Cx<BeforeFit>) {}
    fn note(&mut self, _: &StepContext) {}
    fn helper(&self, _: &Context) {}
}

fn main() {}
