#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: the files of one sample may be anywhere in a shard, or a shard in which they are apart is
# refused.
# Seen: only neighbors are joined: the shard a.jpg, b.jpg, a.cls, b.cls, which is what `tar` makes
# of two folders, gives four samples with one field each, without a warning.
# Versions: webdataset 1.0.2
# Matters: there are twice as many samples, each of them incomplete; with a handler that skips
# errors nothing is left.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  webdataset==1.0.2 numpy==2.4.6
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import io, tarfile, webdataset

def samples(names):
    with tarfile.open("x.tar", "w") as shard:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            shard.addfile(member, io.BytesIO(b"x"))
    return [(sample["__key__"], sorted(field for field in sample if not field.startswith("__")))
            for sample in webdataset.WebDataset("x.tar", shardshuffle=False)]

print(read := samples(["a.jpg", "a.cls", "b.jpg", "b.cls"]))
assert read == [("a", ["cls", "jpg"]), ("b", ["cls", "jpg"])]
print(read := samples(["a.jpg", "b.jpg", "a.cls", "b.cls"]))
assert read == [("a", ["jpg"]), ("b", ["jpg"]), ("a", ["cls"]), ("b", ["cls"])]
EOF
