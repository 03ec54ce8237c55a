trainer::lifecycle! {
    within step {
        /// A low loss.
        point at_record: batch, loss;
    }
}

fn main() {}
