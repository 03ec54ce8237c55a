use trainer::prelude::*;

struct Borrows<'a>(&'a str);

#[hook]
impl<'a> Borrows<'a> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
