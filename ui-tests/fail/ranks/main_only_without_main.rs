use trainer::prelude::*;

#[hook(main_only)]
fn after_step(_: &mut Cx<AfterStep>) {}

struct Logger;

#[hook(main_only)]
impl Logger {
    fn after_record(&mut self, cx: &mut Cx<AfterRecord>) {
        println!("{:?}", cx.record());
    }
}

fn main() {}
