pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples are drawn.
        operation sampling(Samples);
    }
}

fn main() {}
