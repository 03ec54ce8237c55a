#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: `save_as_external_data=True` with `size_threshold=0` moves every initializer into the
# second file.
# Seen: only tensors with `raw_data` move. One from `helper.make_tensor` with a list of numbers
# stays in the .onnx file, whatever its size, and no second file is made; `make_tensor(raw=True)`
# and `numpy_helper.from_array` move.
# Versions: onnx 1.23.2
# Matters: a large model built by hand still exceeds the 2 GB of one protobuf message, which
# external data is meant to avoid.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  onnx==1.23.2 numpy==2.4.6 ml_dtypes==0.6.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np, onnx, os
from onnx import TensorProto, helper, numpy_helper

numbers = np.arange(1000, dtype=np.float32)
for name, weight, moves in [
    ("make_tensor", helper.make_tensor("w", TensorProto.FLOAT, [1000], numbers), False),
    ("make_tensor, raw", helper.make_tensor("w", TensorProto.FLOAT, [1000], numbers.tobytes(), raw=True), True),
    ("from_array", numpy_helper.from_array(numbers, "w"), True),
]:
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [value("x")], [value("y")], [weight])
    os.makedirs(name)
    onnx.save_model(helper.make_model(graph), name + "/m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    print(name, {file: os.path.getsize(name + "/" + file) for file in sorted(os.listdir(name))})
    assert os.path.exists(name + "/w") == moves
    assert (os.path.getsize(name + "/m.onnx") < 4000) == moves
EOF
