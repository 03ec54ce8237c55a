use trainer::prelude::*;

struct Monitor;

#[hook]
impl Clone for Monitor {
    fn clone(&self) -> Self {
        Monitor
    }
}

fn main() {}
