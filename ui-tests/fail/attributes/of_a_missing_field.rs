use trainer::prelude::*;

struct Watch;

#[hook]
impl Watch {
    #[hook(of = self.modules)]
    fn after_module(&mut self, _: &mut Cx<AfterModule>) {}
}

fn main() {}
