pub mod a {
    trainer::lifecycle! {
        within step {
            /// A look.
            operation look {
                trainer::lifecycle! {
                    /// A pause.
                    point paused;
                }
            }
        }
    }
}

pub mod b {
    trainer::lifecycle! {
        within step {
            /// A look.
            operation look {
                within look {
                    /// A pause.
                    point paused;
                }
            }
        }
    }
}

pub mod c {
    trainer::lifecycle! {
        lifecycle! {
            within step {
                /// A look.
                operation look;
            }
        }
    }
}

fn main() {}
