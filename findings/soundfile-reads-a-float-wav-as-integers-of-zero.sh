#!/usr/bin/env bash
# Subject: Images and sound
# Guess: `soundfile.read(path, dtype="int16")` returns samples of the full range of 16 bits,
# whatever the type in the file.
# Seen: samples of a float WAV are converted as they are, not scaled: 0.5 becomes 0 and 1.0
# becomes 1. For PCM, FLAC and Vorbis the same call gives the full range.
# Versions: soundfile 0.14.0
# Matters: one float file in a folder of recordings becomes silence, without an error.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  soundfile==0.14.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np, soundfile

samples = np.tile([0.5, -0.25, 1.0], 1000)
largest = {}
for path, subtype in [("pcm.wav", "PCM_16"), ("x.flac", "PCM_16"), ("x.ogg", "VORBIS"), ("float.wav", "FLOAT")]:
    soundfile.write(path, samples, 16000, subtype=subtype)
    largest[path] = int(np.abs(soundfile.read(path, dtype="int16")[0].astype(int)).max())
print(largest)
assert largest.pop("float.wav") == 1
assert min(largest.values()) > 16000
EOF
