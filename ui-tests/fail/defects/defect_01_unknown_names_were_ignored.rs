//! Defect 1 of trainer-tools: typos, and even `begin_fit` of its docstring, were silently ignored.

use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_setp(&mut self, _: &mut Cx<AfterStep>) {}
    fn begin_fit(&mut self, _: &mut Cx<BeforeFit>) {}
}

fn main() {}
