#!/usr/bin/env bash
# Subject: Images and sound
# Guess: a 16-bit color PNG read as 8 bits has the same pixels in Rust's image crate as in Pillow
# and OpenCV.
# Seen: the image crate rounds to the nearest of 256 levels, Pillow drops the lower byte: of all
# 65,536 values one in four differs by one level, dark ones are darker in Pillow and bright ones
# brighter.
# Versions: image 0.25.10, pillow 13.0.0
# Matters: features computed by two programs from the same file differ in a quarter of the pixels.
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
    let pixels: Vec<u16> = (0..=u16::MAX).flat_map(|value| [value; 3]).collect();
    let image = image::ImageBuffer::<image::Rgb<u16>, _>::from_vec(256, 256, pixels).unwrap();
    image.save(std::env::args().nth(1).unwrap()).unwrap();
    let rounded = image::open(std::env::args().nth(1).unwrap()).unwrap().to_rgb8().into_raw();
    std::fs::write(std::env::args().nth(2).unwrap(), rounded).unwrap();
}
EOF
cargo run --quiet "$dir/x.png" "$dir/x.raw"
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" pillow==13.0.0
PYTHONPATH="$dir/packages" python3 - "$dir/x.png" "$dir/x.raw" <<'EOF'
import sys
from PIL import Image

pillow = Image.open(sys.argv[1]).convert("RGB").tobytes()[::3]
rust = open(sys.argv[2], "rb").read()[::3]
differences = [b - a for a, b in zip(pillow, rust)]
print("of 65,536 values", differences.count(1), "are lower and", differences.count(-1), "higher in Pillow; 1000 is", pillow[1000], "and", rust[1000])
assert list(pillow) == [value >> 8 for value in range(65536)]
assert set(differences) == {-1, 0, 1} and pillow[1000] == 3 and rust[1000] == 4
assert abs(differences.count(0) / 65536 - 0.75) < 0.01
EOF
