use trainer::prelude::*;

trainer::lifecycle! {
    inside step {
        /// The loss is low.
        point at_record: loss;
    }
}

fn main() {}
