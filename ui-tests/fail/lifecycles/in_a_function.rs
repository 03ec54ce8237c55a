fn main() {
    trainer::lifecycle! {
        within step {
            /// A look.
            operation look in train;
        }
    }
}
