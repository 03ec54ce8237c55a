use trainer::prelude::*;

struct Borrows<'a>(&'a str);

#[hook]
impl Borrows<'_> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
