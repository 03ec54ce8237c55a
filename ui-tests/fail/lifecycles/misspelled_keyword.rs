trainer::lifecycle! {
    within step {
        /// The loss is higher than ever before.
        opertion spike;
    }
}

fn main() {}
