trainer::lifecycle! {
    within step {
        #[cfg(feature = "extra")]
        /// A second look.
        operation look;
    }
}

fn main() {}
