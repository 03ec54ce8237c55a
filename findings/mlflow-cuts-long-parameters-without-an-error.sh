#!/usr/bin/env bash
# Subject: Logs of runs
# Guess: a parameter above the limit of its length is refused, or kept: the client has no limit,
# the store reports its own.
# Seen: `log_param` stores the first 6000 characters of a longer text, and says so at no level
# that is shown by default. A value that differs from the stored one is refused afterwards, also
# `1.0` after `1`.
# Versions: mlflow-skinny 3.17.2, with the file store
# Matters: a configuration logged as one parameter is cut in the middle, and no longer parses.
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
with mlflow.start_run() as run:
    for length in [6000, 6001, 10_000]:
        mlflow.log_param(f"p{length}", "x" * length)
    mlflow.log_param("n", 1)
    mlflow.log_param("n", "1")
    try:
        mlflow.log_param("n", 1.0)
        raise SystemExit("1.0 is accepted")
    except mlflow.exceptions.MlflowException as error:
        print(str(error)[:100])
params = mlflow.get_run(run.info.run_id).data.params
lengths = {name: len(text) for name, text in params.items()}
print(lengths)
assert lengths == {"p6000": 6000, "p6001": 6000, "p10000": 6000, "n": 1}
EOF
