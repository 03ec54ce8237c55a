#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: a float written by serde_json is read as the same float by serde_json.
# Seen: of 100,000 random floats 17 % come back changed in the last bit, since the parser is fast
# and not exact. The text is right: `str::parse` reads all of them exactly. The feature
# `float_roundtrip` makes serde_json exact.
# Versions: serde_json 1.0.154
# Matters: a state that is saved as JSON resumes another run, and a hash of it changes with each
# save.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde_json = "=1.0.154"
EOF
cat > src/main.rs <<'EOF'
fn main() {
    let mut bits = 1u64;
    let (mut changed, mut changed_by_std) = (0, 0);
    for _ in 0..100_000 {
        for shift in [13, -7, 17] {
            bits ^= if shift > 0 { bits << shift } else { bits >> -shift };
        }
        let number = (bits >> 11) as f64 / (1u64 << 53) as f64 * 10f64.powi((bits % 40) as i32 - 20);
        let text = serde_json::to_string(&number).unwrap();
        changed += (serde_json::from_str::<f64>(&text).unwrap() != number) as u32;
        changed_by_std += (text.parse::<f64>().unwrap() != number) as u32;
    }
    println!("changed of 100,000: {changed}, by str::parse: {changed_by_std}");
    assert!((10_000..25_000).contains(&changed));
    assert_eq!(changed_by_std, 0);
}
EOF
cargo run --quiet
