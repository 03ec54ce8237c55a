trainer::lifecycle! {
    within step {
        /// A second look.
        operation look;
    }
    /// What was seen.
    exists sight: HasSight from before_lok to after_look;
}

fn main() {}
