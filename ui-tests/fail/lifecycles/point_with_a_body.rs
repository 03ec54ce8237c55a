trainer::lifecycle! {
    within step {
        /// One half of a batch.
        point half {
            /// In the middle.
            point at_half;
        }
    }
}

fn main() {}
