//! Defect 4 of trainer-tools: "or single hook" in the docs raised a `TypeError`. Here `.hook` takes one hook, and a list is reported.

use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn build(task: impl Task) -> Result<()> {
    let _ = Trainer::builder(task).hook(Monitor).hook(vec![Monitor, Monitor]).build()?;
    Ok(())
}

fn main() {}
