use trainer::prelude::*;

struct Watch;

#[hook]
impl Watch {
    #[hook(of = self.modules)]
    fn after_module_forward(&mut self, _: &mut Cx<AfterModuleForward>) {}
}

fn main() {}
