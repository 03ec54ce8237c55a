#!/usr/bin/env bash
# Subject: Rust crates and cargo
# Guess: `StdRng` of one seed gives the same results in rand 0.8 and 0.9, or other ones
# throughout, as its documentation reserves.
# Seen: the words and the floats are the same in 0.8, 0.9 and 0.10; shuffles and ranges of
# integers changed in 0.9, and are those of 0.9 in 0.10. SmallRng is another generator from the
# first word on.
# Versions: rand 0.8.8, 0.9.5 and 0.10.3
# Matters: a test of the generator passes after an update, and every split and every order of the
# data is another one.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
rand8 = { package = "rand", version = "=0.8.8", features = ["small_rng"] }
rand9 = { package = "rand", version = "=0.9.5", features = ["small_rng"] }
rand10 = { package = "rand", version = "=0.10.3" }
EOF
cat > src/main.rs <<'EOF'
macro_rules! draws {
    ($rand:ident, $extension:ident, $any:ident, $range:ident) => {{
        use $rand::{$extension, SeedableRng, rngs::{SmallRng, StdRng}, seq::SliceRandom};
        let new = || StdRng::seed_from_u64(1);
        let mut order: Vec<u32> = (0..10).collect();
        order.shuffle(&mut new());
        let mut rng = new();
        let words = (rng.$any::<u64>(), rng.$any::<f64>().to_bits());
        let integers: Vec<i32> = (0..200).map(|_| rng.$range(0..6)).collect();
        let mut rng = new();
        let indices: Vec<usize> = (0..20).map(|_| rng.$range(0..1000usize)).collect();
        let float: f64 = new().$range(0.0..10.0);
        (words, integers, order, indices, float, SmallRng::seed_from_u64(1).$any::<u64>())
    }};
}

fn main() {
    let v8 = draws!(rand8, Rng, r#gen, gen_range);
    let v9 = draws!(rand9, Rng, random, random_range);
    let v10 = draws!(rand10, RngExt, random, random_range);
    for (version, draws) in [("0.8", &v8), ("0.9", &v9), ("0.10", &v10)] {
        println!("{version}: word {}, shuffle {:?}, float {:.2}", draws.0.0, draws.2, draws.4);
    }
    assert_eq!((v8.0, v8.4), (v9.0, v9.4));
    assert!(v8.1 != v9.1 && v8.2 != v9.2 && v8.3 != v9.3 && v8.5 != v9.5);
    assert_eq!(v9, v10);
}
EOF
cargo run --quiet
