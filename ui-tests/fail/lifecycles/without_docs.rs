trainer::lifecycle! {
    within step {
        point at_spike;
    }
}

fn main() {}
