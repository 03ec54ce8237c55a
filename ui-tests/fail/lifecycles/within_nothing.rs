trainer::lifecycle! {
    within stp {
        /// The loss is higher than ever before.
        point at_spike;
    }
}

fn main() {}
