trainer::lifecycle! {
    within step {
        /// A second look.
        operation look in train: batch;

        /// What was seen.
        exists sight: HasSight at look;
    }
}

fn main() {}
