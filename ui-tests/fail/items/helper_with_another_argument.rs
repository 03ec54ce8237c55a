use trainer::prelude::*;

struct Monitor(u64);

#[hook]
impl Monitor {
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        self.print(cx, 3);
    }

    fn print(&self, cx: &Cx<AfterStep>, digits: usize) {
        println!("{:?} {} {digits}", cx.phase(), self.0);
    }
}

fn main() {}
