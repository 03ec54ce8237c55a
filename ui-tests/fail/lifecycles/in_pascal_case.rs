trainer::lifecycle! {
    within step {
        /// A second look.
        operation SecondLook;
    }
}

fn main() {}
