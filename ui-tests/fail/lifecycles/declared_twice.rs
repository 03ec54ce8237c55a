trainer::lifecycle! {
    within step {
        /// A second look.
        operation look;
        /// The same.
        point before_look;
        /// And again.
        operation look;
    }
}

fn main() {}
