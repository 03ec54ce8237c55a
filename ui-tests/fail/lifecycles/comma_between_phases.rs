trainer::lifecycle! {
    within step {
        /// A low loss.
        point at_record in train, valid;
    }
}

fn main() {}
