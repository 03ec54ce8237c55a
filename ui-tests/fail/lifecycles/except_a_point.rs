trainer::lifecycle! {
    within step {
        /// A look.
        operation look {
            /// Deeper.
            point deeper;
        }
    }
    /// What was seen.
    exists sight: HasSight from before_look to after_look except deeper;
}

fn main() {}
