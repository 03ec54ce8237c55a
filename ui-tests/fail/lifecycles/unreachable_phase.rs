trainer::lifecycle! {
    within backward {
        /// A look.
        operation look in predict;
    }
}

fn main() {}
