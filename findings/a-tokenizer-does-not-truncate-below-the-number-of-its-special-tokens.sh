#!/usr/bin/env bash
# Subject: Tokenizers
# Guess: `enable_truncation(max_length=1)` gives one token, or an error if the template alone has
# two.
# Seen: with a template of two special tokens, a limit of 2 gives the two alone, and a limit of 1
# does not truncate at all: all seven tokens are returned.
# Versions: tokenizers 0.23.3
# Matters: a limit that is computed (what is left of a window) silently has no effect once it gets
# small.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tokenizers==0.23.3
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
from tokenizers import Tokenizer, models, pre_tokenizers, processors

tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "[CLS]": 2, "[SEP]": 3}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
lengths = {}
for limit in [4, 3, 2, 1]:
    tokenizer.enable_truncation(limit)
    lengths[limit] = len(tokenizer.encode("a a a a a").ids)
print("limit: tokens", lengths)
assert lengths == {4: 4, 3: 3, 2: 2, 1: 7}
EOF
