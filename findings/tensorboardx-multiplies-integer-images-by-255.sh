#!/usr/bin/env bash
# Subject: Logs of runs
# Guess: `add_image` takes integers from 0 to 255, of any integer type, as colors.
# Seen: only uint8 is taken as it is. Other integers are multiplied by 255 and wrap around: 200 in
# an int64 array becomes 56. Floats above 1 wrap as well: 2.0 becomes 254.
# Versions: tensorboardX 2.6.5, tensorboard 2.21.0
# Matters: labels and images that went through a tensor of integers are shown in wrong colors.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tensorboard==2.21.0 tensorboardX==2.6.5 setuptools==80.9.0 pillow==13.0.0 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import io, numpy as np
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

writer = SummaryWriter("logs")
for kind in ["uint8", "int32", "int64"]:
    writer.add_image(kind, np.full((3, 2, 2), 200, kind), 1)
writer.add_image("float", np.full((3, 2, 2), 2.0, np.float32), 1)
writer.close()
reader = EventAccumulator("logs")
reader.Reload()
seen = {tag: Image.open(io.BytesIO(reader.Images(tag)[0].encoded_image_string)).getpixel((0, 0))[0] for tag in reader.Tags()["images"]}
print(seen)
assert seen == {"uint8": 200, "int32": 56, "int64": 56, "float": 254}
EOF
