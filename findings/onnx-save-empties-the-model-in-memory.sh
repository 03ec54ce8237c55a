#!/usr/bin/env bash
# Subject: Tensors and samples
# Guess: saving a model leaves the object as it was, and can be repeated.
# Seen: after `onnx.save_model(..., save_as_external_data=True)` the initializers in memory have
# no data, only the name of the file. Saving again, in one file or two, needs that file, and to
# the same place it raises FileExistsError although the .onnx file is overwritten freely.
# Versions: onnx 1.23.2
# Matters: a script that saves a model and goes on to check or quantize the object works on a
# model without weights.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  onnx==1.23.2 numpy==2.4.6 ml_dtypes==0.6.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper

value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000])
graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [value("x")], [value("y")],
                          [numpy_helper.from_array(np.ones(1000, np.float32), "w")])
model = helper.make_model(graph)
weight = model.graph.initializer[0]
onnx.save_model(model, "plain.onnx")
assert len(weight.raw_data) == 4000
onnx.save_model(model, "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
print("bytes in memory:", len(weight.raw_data), [(entry.key, entry.value) for entry in weight.external_data])
assert len(weight.raw_data) == 0 and weight.external_data[0].value == "w"
onnx.save_model(onnx.load("m.onnx"), "plain.onnx")
try:
    onnx.save_model(onnx.load("m.onnx"), "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    raise SystemExit("overwritten")
except FileExistsError as error:
    print("again:", error)
EOF
