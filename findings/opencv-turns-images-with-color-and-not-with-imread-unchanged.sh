#!/usr/bin/env bash
# Subject: Images and sound
# Guess: OpenCV either applies the orientation that a camera stored, or it does not.
# Seen: IMREAD_COLOR, IMREAD_GRAYSCALE and IMREAD_ANYCOLOR turn the image, for JPEG, PNG and WebP
# alike; IMREAD_UNCHANGED does not, so height and width are swapped. In imageio it depends on the
# plugin: `opencv` turns, `pillow` does not.
# Versions: opencv-python-headless 5.0.0.93, imageio 2.38.1, pillow 13.0.0
# Matters: masks and depth maps, which are read unchanged, do not lie on the photographs to which
# they belong.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  opencv-python-headless==5.0.0.93 imageio==2.38.1 pillow==13.0.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import cv2, imageio.v3 as iio, numpy as np
from PIL import Image

exif = Image.Exif()
exif[274] = 6  # a quarter turn
wide = Image.fromarray(np.zeros((2, 4, 3), np.uint8))
for path in ["x.jpg", "x.png", "x.webp"]:
    wide.save(path, exif=exif)
    seen = {flag: cv2.imread(path, getattr(cv2, flag)).shape[:2]
            for flag in ["IMREAD_COLOR", "IMREAD_GRAYSCALE", "IMREAD_ANYCOLOR", "IMREAD_UNCHANGED"]}
    seen |= {plugin: iio.imread(path, plugin=plugin).shape[:2] for plugin in ["opencv", "pillow"]}
    print(path, seen)
    assert list(seen.values()) == [(4, 2), (4, 2), (4, 2), (2, 4), (4, 2), (2, 4)]
EOF
