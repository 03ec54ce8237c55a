use trainer::prelude::*;

#[hook]
impl Vec<u8> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

#[hook]
impl (u8, u8) {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
