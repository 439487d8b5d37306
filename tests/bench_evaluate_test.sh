#!/bin/bash
# `ringzero evaluate`: the loss and the score that a run has told of the model that it wrote, whatever the batch; errors are one line.
# ctest: timeout=90
set -u
. "$(dirname "$0")/harness/program.sh"

word() { for w; do printf "\\x$(printf %02x $((w & 255)))\\x$(printf %02x $((w >> 8 & 255)))"; done; }
example() { word 65535 $((2 * ($# + 2))) "$@"; } # number, label, endings, then lists
# questions FILE: 40 of them, with 4 endings of 1 to 3 bytes of the text's.
questions() {
    { word 55434 308 1 0 40 0 42 0; head -c 1008 /dev/zero
      for ((i = 0; i < 40; i++)); do
          example $i $((i * 7 % 4)) 4 3 116 104 $((97 + i % 26)) 1 $((97 + i * 5 % 26)) 2 $((97 + i * 3 % 26)) 32 1 $((97 + i * 11 % 26)) 3 32 114 $((97 + i % 7))
      done; } >"$1"
}
for ((i = 0; i < 800; i++)); do echo "the ring sends chunk $((i * 7 % 11)) to every rank"; done >"$work/text"
questions "$work/questions.bin"
value() { sed -nE "s/.*\"$2\":([^,}]*).*/\1/p" "$1"; }
close() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && (a - b) * (a - b) < 1e-8 * a * a) }'; }

run train --ranks 2 --data "$work/text" --positions 16 --layers 1 --heads 2 --channels 16 --batch 3 --steps 12 --warmup 2 --validate-every 0 \
    --checkpoint "$work/run" --hellaswag "$work/questions.bin" --json "$work/told"
tail -n 2 "$work/told" | head -n 1 >"$work/last" # before the ledger
[ -n "$(value "$work/last" hellaswag)" ] && [ -n "$(value "$work/last" val_loss)" ] || fail "the run has told nothing: $(cat "$work/told")"
for batch in 1 3 8; do
    run evaluate --checkpoint "$work/run" --data "$work/text" --hellaswag "$work/questions.bin" --batch $batch --json "$work/json"
    parses "$work/json"
    close "$(value "$work/last" val_loss)" "$(value "$work/json" val_loss)" || fail "batch $batch: $(cat "$work/json") instead of $(cat "$work/last")"
    for score in hellaswag hellaswag_sum; do
        close "$(value "$work/last" $score)" "$(value "$work/json" $score)" || fail "batch $batch: $(cat "$work/json") instead of $(cat "$work/last")"
    done
    [ "$(value "$work/json" questions)" = 40 ] || fail "$(cat "$work/json")"
done
grep -q '^validation loss [0-9.]* nats per token, perplexity [0-9.]*, of [0-9]* tokens of the last tenth of ' "$work/out" || fail "$(cat "$work/out")"
grep -q '^hellaswag [0-9.]* by mean loss, [0-9.]* by sum, of 40 questions$' "$work/out" || fail "$(cat "$work/out")"

# All of a file, shorter sequences, weights in 16 bits.
tail -c 3000 "$work/text" >"$work/held"
run evaluate --checkpoint "$work/run" --validation "$work/held" --seq 8 --dtype bfloat16 --threads 1 --json "$work/json"
[ "$(value "$work/json" tokens)" = 2992 ] && ! grep -q hellaswag "$work/json" || fail "374 windows of 8: $(cat "$work/json")"
run evaluate --checkpoint "$work/run" --hellaswag "$work/questions.bin" --json "$work/json"
grep -q val_loss "$work/json" && fail "no loss was asked for: $(cat "$work/json")"

# Hugging Face's folder.
mkdir "$work/folder"
cp "$RINGZERO_SOURCE/tests/golden/gpt2_hf_golden.safetensors" "$work/folder/model.safetensors" # V 53, T 12
{ word 55434 308 1 0 1 0 26 0; head -c 1008 /dev/zero; example 0 1 2 2 7 52 2 1 2 1 3; } >"$work/small.bin"
run evaluate --checkpoint "$work/folder" --heads 3 --hellaswag "$work/small.bin"
grep -q 'L2 NH3 C24 V53' "$work/out" && grep -q 'of 1 question$' "$work/out" || fail "$(cat "$work/out")"

refused "--checkpoint is missing" evaluate --data "$work/text"
refused "nothing to evaluate on is given" evaluate --checkpoint "$work/run"
refused "--data and --validation are given" evaluate --checkpoint "$work/run" --data a --validation b
refused "--ranks is 2" evaluate --checkpoint "$work/run" --data "$work/text" --ranks 2
refused "found \"run\"" evaluate run
refused "--device is \"cudasim\", expected host" evaluate --checkpoint "$work/run" --data "$work/text" --device cudasim
"$ringzero" evaluate --checkpoint "$work/run" --data "$work/text" --seq 17 >/dev/null 2>"$work/err"
[ $? -eq 2 ] && grep -q -- '--seq is 17, expected at most 16' "$work/err" || fail "$(cat "$work/err")"
"$ringzero" evaluate --checkpoint "$work/run" --hellaswag "$work/questions.bin" --seq 4 >/dev/null 2>"$work/err"
[ $? -eq 1 ] && grep -q 'the length of a row is 5, expected at most 4' "$work/err" || fail "$(cat "$work/err")"
"$ringzero" evaluate --checkpoint "$work/run" --data "$work/questions.bin" >/dev/null 2>"$work/err"
[ $? -eq 1 ] && grep -q 'this is no token shard' "$work/err" || fail "$(cat "$work/err")"
"$ringzero" evaluate --checkpoint "$work/run" --hellaswag "$work/questions.bin" >/dev/full 2>"$work/err"
[ $? -eq 1 ] && grep -q 'standard output cannot be written' "$work/err" || fail "$(cat "$work/err")"
exit $failed
