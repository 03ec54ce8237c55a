use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx<Main<AfterStep>>) {}

struct Logger;

#[hook]
impl Logger {
    #[hook(main_only)]
    fn setup(&mut self, _: &mut Cx<Main<Setup>>) {}

    fn after_record(&mut self, _: &mut Cx<trainer::Main<AfterRecord>>) {}
}

fn main() {}
