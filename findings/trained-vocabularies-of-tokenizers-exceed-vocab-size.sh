#!/usr/bin/env bash
# Subject: Tokenizers
# Guess: `vocab_size=5` of a trainer is an upper bound.
# Seen: BpeTrainer keeps every character and special token, whatever the size: 27 entries for 26
# letters and one special token. WordPieceTrainer does the same. UnigramTrainer raises an error.
# Versions: tokenizers 0.23.3
# Matters: an embedding made with `vocab_size` rows is too small, which shows at the first rare
# character.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m pip install -qq --disable-pip-version-check --root-user-action ignore --target "$dir/packages" \
  tokenizers==0.23.3
cd "$dir"
PYTHONPATH="$dir/packages" python3 - <<'EOF'
from tokenizers import Tokenizer, models, trainers

letters = ["abcdefghijklmnopqrstuvwxyz"]
bpe = Tokenizer(models.BPE())
bpe.train_from_iterator(letters, trainers.BpeTrainer(vocab_size=5, special_tokens=["<s>"], show_progress=False))
pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
pieces.train_from_iterator(letters, trainers.WordPieceTrainer(vocab_size=5, show_progress=False))
print("BPE", bpe.get_vocab_size(), "WordPiece", pieces.get_vocab_size())
assert bpe.get_vocab_size() == 27 and pieces.get_vocab_size() > 5
try:
    Tokenizer(models.Unigram()).train_from_iterator(letters, trainers.UnigramTrainer(vocab_size=5, show_progress=False))
    raise SystemExit("Unigram keeps to the size")
except Exception as error:
    print("Unigram:", error)
EOF
