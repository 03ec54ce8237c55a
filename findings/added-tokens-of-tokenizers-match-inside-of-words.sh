#!/usr/bin/env bash
# Subject: Tokenizers
# Guess: a token added with `add_tokens(["art"])` matches the word `art`; the word `party`, which
# the vocabulary has, stays whole.
# Seen: added tokens are cut out of the text before words are found: `party` becomes unknown,
# `art`, unknown. `AddedToken("art", single_word=True)` matches words only.
# Versions: tokenizers 0.23.3
# Matters: adding words of a domain to a tokenizer breaks longer words that it knew.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tokenizers==0.23.3
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

for token, expected in [("art", ["the", "[UNK]", "art", "[UNK]"]), (AddedToken("art", single_word=True), ["the", "party"])]:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "party": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert tokenizer.encode("the party").tokens == ["the", "party"]
    tokenizer.add_tokens([token])
    print(token, tokenizer.encode("the party").tokens)
    assert tokenizer.encode("the party").tokens == expected
EOF
