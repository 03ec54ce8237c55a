use trainer::prelude::*;

#[hook(of = "a", "b", "c", every = 2)]
fn one(_: &Cx<AfterModuleForward>) {}

#[hook(only = train, valid)]
fn two(_: &Cx<AfterStep>) {}

#[hook(after = one, crate::two)]
fn three(_: &Cx<AfterStep>) {}

#[hook(in = A, B)]
fn four(_: &Cx<AfterStep>) {}

struct A;
impl HookSet for A {}
struct B;
impl HookSet for B {}

fn main() {}
