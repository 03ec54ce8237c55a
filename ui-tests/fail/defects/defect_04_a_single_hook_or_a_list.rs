//! Defect 4 of trainer-tools: a single hook raised a `TypeError`. Here, a list is reported.

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
