use trainer::prelude::*;

#[hook]
fn after_step(cx: &mut Cx<AfterStep>) -> Result<()> {
    let steps = cx.counters().batches_seen;
    cx.save("steps", steps)
}

#[hook]
fn before_fit(cx: &mut Cx<BeforeFit>) -> Result<()> {
    let _steps: u64 = cx.saved().get("steps")?;
    Ok(())
}

#[hook]
fn before_test(cx: &mut Cx<BeforeTest>) {
    cx.save_checkpoint("runs/first");
}

fn main() {}
