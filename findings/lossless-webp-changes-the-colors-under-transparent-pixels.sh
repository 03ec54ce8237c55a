#!/usr/bin/env bash
# Subject: Images and sound
# Guess: `lossless=True` means that the pixels come back as they were, as with PNG.
# Seen: Pillow and OpenCV set the color of fully transparent pixels to black, because it is not
# visible. Pillow has `exact=True` against it.
# Versions: pillow 13.0.0, opencv-python-headless 5.0.0.93
# Matters: an image read as RGB, without its alpha, has black areas where the PNG had a
# background.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pillow==13.0.0 opencv-python-headless==5.0.0.93 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import cv2, numpy as np
from PIL import Image

hidden = np.zeros((2, 2, 4), np.uint8)
hidden[..., 0] = 200
for name, save in {
    "Pillow, PNG": lambda: Image.fromarray(hidden).save("x.png"),
    "Pillow, WebP": lambda: Image.fromarray(hidden).save("x.webp", lossless=True),
    "Pillow, WebP, exact": lambda: Image.fromarray(hidden).save("x.webp", lossless=True, exact=True),
    "OpenCV, WebP": lambda: cv2.imwrite("x.webp", hidden, [cv2.IMWRITE_WEBP_QUALITY, 101]),
}.items():
    save()
    pixel = np.asarray(Image.open("x.png" if "PNG" in name else "x.webp").convert("RGBA"))[0, 0].tolist()
    print(name, pixel)
    assert (max(pixel) == 200) == ("PNG" in name or "exact" in name)
EOF
