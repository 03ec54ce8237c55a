trainer::lifecycle! {
    within step {
        /// A look.
        point looked;
    }
}

trainer::lifecycle! {
    within epoch {
        /// A pause.
        point paused;
    }

    /// A reason.
    exists reason: HasReason at paused;
}

fn main() {
    let _: Option<at::looked> = None;
}
