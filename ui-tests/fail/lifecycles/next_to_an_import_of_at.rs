use trainer::at;

trainer::lifecycle! {
    within step {
        /// A look.
        operation look in train;
    }
}

#[trainer::hook]
fn report(_: &mut trainer::Cx<trainer::AfterStep>) {}

fn main() {}
