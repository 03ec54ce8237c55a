#!/usr/bin/env bash
# Subject: Serialization in Rust
# Guess: `#[serde(flatten)] Option<Section>` is None if the keys of the section are absent, and a
# wrong value of a present key is an error.
# Seen: any error within the section gives None: with `size: u8`, `{"size": 300}` and `{"size":
# "big"}` are read as if the key were not there. Without the Option the same files are refused.
# Versions: serde 1.0.229, serde_json 1.0.154
# Matters: a typo in a settings file turns a whole section off without a message.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
serde = { version = "=1.0.229", features = ["derive"] }
serde_json = "=1.0.154"
EOF
cat > src/main.rs <<'EOF'
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Section {
    size: u8,
}
#[derive(Debug, Deserialize)]
struct Optional {
    #[serde(flatten)]
    section: Option<Section>,
}
#[derive(Debug, Deserialize)]
struct Required {
    #[serde(flatten)]
    section: Section,
}

fn main() {
    let good: Optional = serde_json::from_str(r#"{"size": 3}"#).unwrap();
    assert_eq!(good.section.unwrap().size, 3);
    for text in [r#"{"size": 300}"#, r#"{"size": "big"}"#] {
        let read: Optional = serde_json::from_str(text).unwrap();
        let error = serde_json::from_str::<Required>(text).map(|read| read.section.size).unwrap_err();
        println!("{text}: optional {:?}, required {error}", read.section);
        assert!(read.section.is_none());
    }
}
EOF
cargo run --quiet
