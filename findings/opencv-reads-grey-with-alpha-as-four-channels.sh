#!/usr/bin/env bash
# Subject: Images and sound
# Guess: a PNG of grey and alpha read with IMREAD_UNCHANGED has two channels, as it has in Pillow.
# Seen: it has four: blue, green and red with the same value, and alpha. IMREAD_UNCHANGED keeps
# the depth (16 bits) but not the number of channels; a palette becomes three or four channels as
# well.
# Versions: opencv-python-headless 5.0.0.93, pillow 13.0.0
# Matters: code that decides by the number of channels takes a grey image for color.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  opencv-python-headless==5.0.0.93 pillow==13.0.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import struct, zlib
import cv2
from PIL import Image

def png(path, width, depth, color, row, chunks=b""):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, 1, depth, color, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" + row))
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + header + chunks + body + chunk(b"IEND", b""))

chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
palette = chunk(b"PLTE", bytes([255, 0, 0, 0, 255, 0]))
png("la.png", 2, 8, 4, bytes([100, 255, 200, 0]))
png("p.png", 2, 8, 3, bytes([0, 1]), palette)
png("pt.png", 2, 8, 3, bytes([0, 1]), palette + chunk(b"tRNS", bytes([0])))
seen = {path: (Image.open(path).mode, cv2.imread(path, cv2.IMREAD_UNCHANGED)) for path in ["la.png", "p.png", "pt.png"]}
seen = {path: (mode, read.shape[-1], str(read.dtype)) for path, (mode, read) in seen.items()}
print(seen)
assert seen == {"la.png": ("LA", 4, "uint8"), "p.png": ("P", 3, "uint8"), "pt.png": ("P", 4, "uint8")}
assert cv2.imread("la.png", cv2.IMREAD_UNCHANGED).tolist() == [[[100, 100, 100, 255], [200, 200, 200, 0]]]
EOF
