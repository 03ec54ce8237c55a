use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// The loss is low.
        point at_record = loss;
    }
}

fn main() {}
