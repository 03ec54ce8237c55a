pub struct Samples;

trainer::lifecycle! {
    within step {
        /// Samples were drawn.
        point sampled(std::rc::Rc<Samples>);
    }
}

fn main() {}
