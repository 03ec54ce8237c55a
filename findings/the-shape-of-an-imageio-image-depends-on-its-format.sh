#!/usr/bin/env bash
# Subject: Images and sound
# Guess: `imageio.v3.imread` returns height x width x 3 for a file with one image, and all frames
# with a first dimension for an animation.
# Seen: a GIF with one image has a first dimension of 1. An animated GIF, PNG or multi-page TIFF
# returns all frames, an animated WebP the first one only.
# Versions: imageio 2.38.1, pillow 13.0.0
# Matters: a folder of pictures in which one is a GIF does not stack, and animations in WebP lose
# their frames without a word.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  imageio==2.38.1 pillow==13.0.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import imageio.v3 as iio, numpy as np
from PIL import Image

frames = [Image.fromarray(np.full((4, 5, 3), value, np.uint8)) for value in (0, 100, 200)]
shapes = {}
for kind in ["png", "gif", "tiff", "webp"]:
    frames[0].save("one." + kind)
    frames[0].save("three." + kind, save_all=True, append_images=frames[1:])
    shapes[kind] = iio.imread("one." + kind).shape, iio.imread("three." + kind).shape
    print(kind, *shapes[kind])
one, three = (4, 5, 3), (3, 4, 5, 3)
assert shapes == {"png": (one, three), "gif": ((1, 4, 5, 3), three), "tiff": (one, three), "webp": (one, one)}
EOF
