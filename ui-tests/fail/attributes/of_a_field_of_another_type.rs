use trainer::prelude::*;

struct Watch {
    modules: u32,
}

#[hook]
impl Watch {
    #[hook(of = self.modules)]
    fn after_module_forward(&mut self, _: &mut Cx<AfterModuleForward>) {}
}

fn main() {}
