pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples were drawn.
        point sampled(Hidden);
    }
}

struct Hidden;

fn main() {}
