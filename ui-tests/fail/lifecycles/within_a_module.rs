trainer::lifecycle! {
    within module_forward {
        /// A moment of a module.
        point at_moment;
    }
}

fn main() {}
