#!/usr/bin/env bash
# Subject: Images and sound
# Guess: shrinking a label map by nearest neighbor gives the same map in OpenCV and Pillow: no
# arithmetic is involved.
# Seen: of five pixels reduced to two, OpenCV's INTER_NEAREST takes 0 and 2, Pillow 1 and 3, the
# ones at the centers of the new pixels. INTER_NEAREST_EXACT of OpenCV is what Pillow does.
# Versions: opencv-python-headless 5.0.0.93, pillow 13.0.0
# Matters: masks are shifted by up to half a pixel of the result against images that the other
# library has resized.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import cv2, numpy as np
from PIL import Image

row = np.arange(5, dtype=np.uint8)[None]
seen = {
    "Pillow": np.asarray(Image.fromarray(row).resize((2, 1), Image.Resampling.NEAREST))[0].tolist(),
    "OpenCV": cv2.resize(row, (2, 1), interpolation=cv2.INTER_NEAREST)[0].tolist(),
    "OpenCV, exact": cv2.resize(row, (2, 1), interpolation=cv2.INTER_NEAREST_EXACT)[0].tolist(),
}
print(seen)
assert seen == {"Pillow": [1, 3], "OpenCV": [0, 2], "OpenCV, exact": [1, 3]}
EOF
