trainer::lifecycle! {
    within step {
        /// A low loss.
        point at_record;
    }
    crate = trainer;
}

fn main() {}
