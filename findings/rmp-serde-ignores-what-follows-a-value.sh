#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: `rmp_serde::from_slice`, like `serde_json::from_slice`, refuses bytes after the value.
# Seen: they are ignored: the three bytes of 1, 2, 3 are read as 1. serde_json reports "trailing
# characters".
# Versions: rmp-serde 1.3.1, serde_json 1.0.154
# Matters: a file that was appended to, or overwritten by a shorter one without cutting the old
# end, passes for valid.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde_json = "=1.0.154"
rmp-serde = "=1.3.1"
EOF
cat > src/main.rs <<'EOF'
fn main() {
    let first = rmp_serde::from_slice::<i32>(&[1, 2, 3]);
    println!("MessagePack: {first:?}");
    assert_eq!(first.unwrap(), 1);
    let error = serde_json::from_slice::<i32>(b"1 2 3").unwrap_err();
    println!("JSON: {error}");
}
EOF
cargo run --quiet
