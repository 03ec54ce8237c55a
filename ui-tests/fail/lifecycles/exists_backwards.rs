trainer::lifecycle! {
    within step {
        /// A second look.
        operation look;
    }
    /// What was seen.
    exists sight: HasSight from after_look to before_look;
}

fn main() {}
