//! Defect 1 of trainer-tools: typos, and even `begin_fit` of its docstring, were silently ignored.

use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn log(&mut self, _: &mut Cx<AfterSetp>) {}
    fn begin(&mut self, _: &mut Cx<BeginFit>) {}
}

fn main() {}
