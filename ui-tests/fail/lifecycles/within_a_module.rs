trainer::lifecycle! {
    within module {
        /// A moment of a module.
        point at_moment;
    }
}

fn main() {}
