#!/usr/bin/env bash
# Subject: Images and sound
# Guess: converting a color image to grey uses the weights 0.299, 0.587 and 0.114 everywhere, so
# libraries agree up to rounding.
# Seen: Rust's image crate uses the weights of high-definition television, 0.2126, 0.7152 and
# 0.0722: pure red is 54 instead of 76, green 182 instead of 150, blue 18 instead of 29.
# Versions: image 0.25.10, pillow 13.0.0
# Matters: a model trained on Pillow's grey images sees other brightnesses in a Rust program.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export CARGO_TARGET_DIR="$dir/target"
cargo init --quiet --vcs none --name finding --edition 2024 "$dir/finding"
cd "$dir/finding"
cat >> Cargo.toml <<'EOF'
image = { version = "=0.25.10", default-features = false, features = ["png"] }
EOF
cat > src/main.rs <<'EOF'
fn main() {
    let image = image::RgbImage::from_vec(3, 1, vec![255, 0, 0, 0, 255, 0, 0, 0, 255]).unwrap();
    image.save(std::env::args().nth(1).unwrap()).unwrap();
    let grey = image::DynamicImage::from(image).to_luma8().into_raw();
    println!("image: {grey:?}");
    assert_eq!(grey, [54, 182, 18]);
}
EOF
cargo run --quiet "$dir/x.png"
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" pillow==13.0.0
PYTHONPATH="$dir/packages" python3 - "$dir/x.png" <<'EOF'
import sys
from PIL import Image

grey = list(Image.open(sys.argv[1]).convert("L").tobytes())
print("Pillow:", grey)
assert grey == [76, 150, 29]
EOF
