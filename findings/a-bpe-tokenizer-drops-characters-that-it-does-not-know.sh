#!/usr/bin/env bash
# Subject: Tokenizers
# Guess: a character outside of the vocabulary becomes an unknown token, or encoding fails if
# there is none.
# Seen: a BPE model without `unk_token` leaves it out: `axbz` is encoded as `a`, `b`, with no sign
# that something is missing; the positions of the tokens are not those in the text either, (0, 1)
# and (1, 2).
# Versions: tokenizers 0.23.3
# Matters: texts in an unexpected script become short or empty, and labels by position do not fit.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tokenizers==0.23.3
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
from tokenizers import Tokenizer, models

encoded = Tokenizer(models.BPE({"a": 0, "b": 1}, [])).encode("axbz")
print(encoded.tokens, encoded.offsets)
assert encoded.tokens == ["a", "b"] and encoded.offsets == [(0, 1), (1, 2)]
encoded = Tokenizer(models.BPE({"a": 0, "b": 1, "?": 2}, [], unk_token="?")).encode("axbz")
print(encoded.tokens, encoded.offsets)
assert encoded.tokens == ["a", "?", "b", "?"] and encoded.offsets == [(0, 1), (1, 2), (2, 3), (3, 4)]
EOF
