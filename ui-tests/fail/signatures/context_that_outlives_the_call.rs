use trainer::prelude::*;

#[hook]
fn watch<'a>(cx: &'a Cx<AfterLoss>)
where
    'a: 'static,
{
    println!("{}", cx.counters().batches_seen);
}

fn main() {}
