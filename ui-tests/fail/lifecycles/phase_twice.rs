trainer::lifecycle! {
    within step {
        /// A look.
        operation look in train | valid | train;
    }
}

fn main() {}
