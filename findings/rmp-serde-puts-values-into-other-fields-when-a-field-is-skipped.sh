#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: `skip_serializing_if` on optional fields works with MessagePack as with JSON, or reading
# fails.
# Seen: `rmp_serde::to_vec` writes structs as arrays without names, so a skipped field moves the
# following ones forward: `{ lr: None, decay: Some(0.1) }` is read as `{ lr: Some(0.1), decay:
# None }`. `to_vec_named` is right.
# Versions: rmp-serde 1.3.1, serde 1.0.229
# Matters: settings and states come back with exchanged values of the same type, without an error.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde = { version = "=1.0.229", features = ["derive"] }
rmp-serde = "=1.3.1"
EOF
cat > src/main.rs <<'EOF'
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Settings {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    lr: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    decay: Option<f64>,
}

fn main() {
    let settings = Settings { lr: None, decay: Some(0.1) };
    let read: Settings = rmp_serde::from_slice(&rmp_serde::to_vec(&settings).unwrap()).unwrap();
    println!("written {settings:?}, read {read:?}");
    assert_eq!(read, Settings { lr: Some(0.1), decay: None });
    let read: Settings = rmp_serde::from_slice(&rmp_serde::to_vec_named(&settings).unwrap()).unwrap();
    assert_eq!(read, settings);
}
EOF
cargo run --quiet
