trainer::lifecycle! {
    within at::look {
        /// A look.
        operation look in train;
    }
}

fn main() {}
