#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: a `HashMap<u32, _>` that is read from JSON on its own is also read as a field of a
# flattened struct, or of an enum with a tag.
# Seen: `flatten`, `tag` and `untagged` first store the map as it looks, with texts as keys, and
# "1" is then no u32: reading what was just written fails. The same with a u128 ("u128 is not
# supported"). TOML fails alike.
# Versions: serde 1.0.229, serde_json 1.0.154, toml 1.2.1
# Matters: adding `#[serde(flatten)]` around settings or a saved state makes old and new files
# unreadable.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde = { version = "=1.0.229", features = ["derive"] }
serde_json = "=1.0.154"
toml = "=1.2.1"
EOF
cat > src/main.rs <<'EOF'
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

#[derive(Debug, Serialize, Deserialize)]
struct Counts {
    counts: HashMap<u32, i32>,
}
#[derive(Debug, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    inner: Counts,
}
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Counts(Counts),
    Large { number: u128 },
}
#[derive(Debug, Serialize, Deserialize)]
struct Large {
    number: u128,
}

fn main() {
    let counts = || Counts { counts: HashMap::from([(1, 2)]) };
    let plain = serde_json::to_string(&counts()).unwrap();
    assert!(serde_json::from_str::<Counts>(&plain).is_ok());
    let flat = serde_json::to_string(&Flat { inner: counts() }).unwrap();
    assert_eq!(flat, plain);
    println!("flatten: {}", serde_json::from_str::<Flat>(&flat).unwrap_err());
    let tagged = serde_json::to_string(&Tagged::Counts(counts())).unwrap();
    println!("tag: {}", serde_json::from_str::<Tagged>(&tagged).unwrap_err());
    let flat = toml::to_string(&Flat { inner: counts() }).unwrap();
    assert!(toml::from_str::<Counts>(&flat).is_ok());
    assert!(toml::from_str::<Flat>(&flat).is_err());
    assert!(serde_json::from_str::<Large>(r#"{"number":5}"#).is_ok());
    let large = serde_json::to_string(&Tagged::Large { number: 5 }).unwrap();
    println!("u128: {}", serde_json::from_str::<Tagged>(&large).unwrap_err());
}
EOF
cargo run --quiet
