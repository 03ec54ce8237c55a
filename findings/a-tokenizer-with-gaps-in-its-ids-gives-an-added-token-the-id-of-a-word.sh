#!/usr/bin/env bash
# Subject: Tokenizers
# Guess: a token added to a tokenizer gets an id that is not in use.
# Seen: the first new id is the number of words in the vocabulary. If the ids have a gap, it may
# be taken: with a word of id 5 among four words, the second added token gets id 5 too, and 5 now
# decodes to it.
# Versions: tokenizers 0.23.3
# Matters: vocabularies that were pruned or have reserved ids: two texts share a row of the
# embedding, and decoding returns the wrong word.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tokenizers==0.23.3
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
from tokenizers import Tokenizer, models

tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "last": 5}, unk_token="[UNK]"))
assert tokenizer.decode([5]) == "last"
tokenizer.add_tokens(["new", "newer"])
ids = {token: tokenizer.token_to_id(token) for token in ["last", "new", "newer"]}
print(ids, "5 decodes to", tokenizer.decode([5]))
assert ids == {"last": 5, "new": 4, "newer": 5}
assert tokenizer.encode("last").ids == tokenizer.encode("newer").ids == [5]
assert tokenizer.decode([5]) == "newer"
EOF
