#!/usr/bin/env bash
# Subject: Images and sound
# Guess: a PNG of 16 bits is brought to 8 bits by dropping the lower byte, in grey and in color,
# in Pillow as in OpenCV.
# Seen: Pillow does so for color. For grey, `convert("L")` and `convert("RGB")` clip: every value
# above 255 becomes 255, so the image is nearly white. imageio with `mode="L"` does as Pillow.
# OpenCV drops the lower byte in both cases.
# Versions: pillow 13.0.0, opencv-python-headless 5.0.0.93, imageio 2.38.1
# Matters: medical and depth images turn white in the usual `Image.open(path).convert("RGB")`.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  pillow==13.0.0 opencv-python-headless==5.0.0.93 imageio==2.38.1 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import struct, zlib
import cv2, imageio.v3 as iio, numpy as np
from PIL import Image

def png(path, width, depth, color, row, chunks=b""):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, 1, depth, color, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" + row))
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + header + chunks + body + chunk(b"IEND", b""))

values = [0, 127, 255, 256, 1000, 32768, 65535]
png("grey.png", 7, 16, 0, struct.pack(">7H", *values))
png("color.png", 7, 16, 2, b"".join(struct.pack(">3H", value, value, value) for value in values))
shifted, clipped = [value >> 8 for value in values], [min(value, 255) for value in values]
seen = {
    "Pillow, grey": np.asarray(Image.open("grey.png").convert("L"))[0].tolist(),
    "Pillow, grey to RGB": np.asarray(Image.open("grey.png").convert("RGB"))[0, :, 0].tolist(),
    "imageio, grey": iio.imread("grey.png", mode="L")[0].tolist(),
    "Pillow, color": np.asarray(Image.open("color.png").convert("RGB"))[0, :, 0].tolist(),
    "OpenCV, grey": cv2.imread("grey.png", cv2.IMREAD_GRAYSCALE)[0].tolist(),
    "OpenCV, color": cv2.imread("color.png")[0, :, 0].tolist(),
}
for name, read in seen.items():
    print(name, read)
assert [read == clipped for read in seen.values()] == [True, True, True, False, False, False]
assert [read == shifted for read in seen.values()] == [False, False, False, True, True, True]
EOF
