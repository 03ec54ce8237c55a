#!/usr/bin/env bash
# Subject: Images and sound
# Guess: a 24-bit WAV read as int32 holds the 24-bit values, below 2^23.
# Seen: scipy.io.wavfile and soundfile put the 24 bits on the left: each value is 256 times as
# large, so that 2^31 is the full scale. Python's wave module returns the bytes as they are.
# Versions: scipy 1.17.1, soundfile 0.14.0
# Matters: dividing by 2^23 gives samples up to 256; dividing by the maximum of the dtype is
# right.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  scipy==1.17.1 soundfile==0.14.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np, soundfile, wave
from scipy.io import wavfile

soundfile.write("x.wav", np.array([0.5, 2.0**-23]), 16000, subtype="PCM_24")
data = wave.open("x.wav").readframes(2)
stored = [int.from_bytes(data[i : i + 3], "little", signed=True) for i in (0, 3)]
seen = wavfile.read("x.wav")[1].tolist(), soundfile.read("x.wav", dtype="int32")[0].tolist()
print("stored", stored, "scipy", seen[0], "soundfile", seen[1])
assert stored == [2**22, 1]
assert seen == ([2**30, 256], [2**30, 256])
EOF
