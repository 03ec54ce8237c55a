#!/usr/bin/env bash
# Subject: Launchers
# Guess: expanding the host list `n3,n1` gives n3, n1: SLURM starts rank 0 on the first host.
# Seen: python-hostlist keeps the order and drops repeated names; ClusterShell sorts. ClusterShell
# also refuses `n[8-011]`, and python-hostlist `n[0-8/2]`, which the other one reads.
# Versions: ClusterShell 1.10.1, python-hostlist 2.3.0
# Matters: a script that takes the first host as the meeting point chooses one where rank 0 does
# not run.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  ClusterShell==1.10.1 python-hostlist==2.3.0
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
import hostlist
from ClusterShell.NodeSet import NodeSetParseError, expand

seen = hostlist.expand_hostlist("n3,n1,n3"), list(expand("n3,n1,n3"))
print("python-hostlist", seen[0], "ClusterShell", seen[1])
assert seen == (["n3", "n1"], ["n1", "n3"])
assert hostlist.expand_hostlist("n[8-011]") == ["n8", "n9", "n10", "n11"]
assert list(expand("n[0-8/2]")) == ["n0", "n2", "n4", "n6", "n8"]
for call, error in [(lambda: expand("n[8-011]"), NodeSetParseError), (lambda: hostlist.expand_hostlist("n[0-8/2]"), hostlist.BadHostlist)]:
    try:
        call()
        raise SystemExit("no error")
    except error as message:
        print(message)
EOF
