trainer::lifecycle! {
    within step {
        /// The loss is higher than ever before.
        point at_spike counts samples;
    }
}

fn main() {}
