trainer::lifecycle! {
    within step {
        /// One half of a batch.
        operation half;
    }
    /// A fake image.
    exists fake: HasFake from before_hlaf to after_half;
}

fn main() {}
