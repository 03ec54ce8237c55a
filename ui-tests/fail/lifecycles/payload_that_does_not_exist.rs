pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples were drawn.
        point sampled(Sampels);
    }
}

fn main() {}
