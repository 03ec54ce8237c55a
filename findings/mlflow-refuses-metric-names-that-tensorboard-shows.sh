#!/usr/bin/env bash
# Subject: Logs of runs
# Guess: a metric may have any name that one would print: `acc@1`, `loss (train)`, `val[0]`.
# Seen: mlflow accepts letters, digits, `_`, `-`, `.`, space, `:` and `/`, raises an error for
# others, and for names that are not clean paths, such as `a//b`. A name that is a folder of
# another one (`a` after `a/b`) fails in the file store.
# Versions: mlflow-skinny 3.17.2, with the file store
# Matters: a run ends at its first record because of the name of a metric that other loggers took.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  mlflow-skinny==3.17.2 setuptools==80.9.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import mlflow, os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
mlflow.set_tracking_uri("file:" + os.getcwd() + "/runs")
accepted = {}
with mlflow.start_run():
    for name in ["a/b", "a:b", "a b", "acc@1", "loss (train)", "val[0]", "x%", "a//b"]:
        try:
            mlflow.log_metric(name, 1.0)
            accepted[name] = True
        except mlflow.exceptions.MlflowException:
            accepted[name] = False
    try:
        mlflow.log_metric("a", 1.0)
        raise SystemExit("a is accepted beside a/b")
    except (OSError, mlflow.exceptions.MlflowException) as error:
        print(type(error).__name__)
print(accepted)
assert [name for name, good in accepted.items() if good] == ["a/b", "a:b", "a b"]
EOF
