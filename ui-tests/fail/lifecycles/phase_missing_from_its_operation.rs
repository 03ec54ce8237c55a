trainer::lifecycle! {
    within step {
        /// A look.
        operation look in train {
            /// A moment of it.
            point at_look in train | valid;
        }
    }
}

fn main() {}
