use trainer::prelude::*;

use std::rc::Rc;

#[hook]
fn after_step(_: &mut Cx<AfterStep>) -> Result<(), Rc<str>> {
    Ok(())
}

fn main() {}
