#!/usr/bin/env bash
# Subject: Rust crates and cargo
# Guess: `half::f16::from_f64` returns the nearest 16-bit float, as numpy does.
# Seen: the lower half of the double is ignored, so a number just above the middle of two
# neighbors counts as the middle and goes to the even one: 1 + 2^-11 + 2^-40 becomes 1 in `half`,
# and 1 + 2^-10 in numpy. `bf16::from_f64` behaves likewise.
# Versions: half 2.7.1, numpy 2.4.6
# Matters: weights converted from double in Rust differ from those converted in Python in rare
# last bits, so hashes of files never agree.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
half = "=2.7.1"
EOF
cat > src/main.rs <<'EOF'
fn main() {
    let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
    println!("half: {}", half::f16::from_f64(above));
    assert_eq!(half::f16::from_f64(above).to_f64(), 1.0);
    let above = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(half::bf16::from_f64(above).to_f64(), 1.0);
}
EOF
cargo run --quiet
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" numpy==2.4.6
PYTHONPATH="$dir/packages" python3 -c '
import numpy as np
print("numpy:", np.float16(1 + 2**-11 + 2**-40))
assert np.float16(1 + 2**-11 + 2**-40) == 1 + 2**-10'
