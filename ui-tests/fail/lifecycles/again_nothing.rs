trainer::lifecycle! {
    within step {
        /// A second look.
        operation look {
            again prd;
        }
    }
}

fn main() {}
