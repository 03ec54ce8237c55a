use trainer::prelude::*;

type Now<'a> = &'a mut Cx<AfterStep>;

struct Monitor;

#[hook]
impl Monitor {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {}
    fn after_step(&mut self, _: Now<'_>) {}
}

fn main() {}
