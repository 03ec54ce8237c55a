//! Whole programs, with crates of hooks beside them: see `it/`.
