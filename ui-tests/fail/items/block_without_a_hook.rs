use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn new() -> Self {
        Monitor
    }
}

fn main() {}
