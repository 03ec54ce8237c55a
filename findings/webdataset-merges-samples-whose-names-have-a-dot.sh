#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: the sample `model_1.5` written by TarWriter is read back with this key; at the least,
# names with different numbers are different samples.
# Seen: the key ends at the first dot of the file name: `model_1.5.jpg` and `model_1.6.jpg` are
# read as one sample `model_1` with the fields `5.jpg` and `6.jpg`. TarWriter writes such keys
# without a warning.
# Versions: webdataset 1.0.2
# Matters: data sets named after versions, times or floats shrink to a few samples without the
# field that a program asks for.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  webdataset==1.0.2 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import webdataset

with webdataset.TarWriter("x.tar") as writer:
    for key in ["model_1.5", "model_1.6"]:
        writer.write({"__key__": key, "jpg": b"pixels"})
samples = [{name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}
           for sample in webdataset.WebDataset("x.tar", shardshuffle=False)]
print(samples)
assert samples == [{"__key__": "model_1", "5.jpg": b"pixels", "6.jpg": b"pixels"}]
EOF
