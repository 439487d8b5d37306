#!/bin/bash
# `ringzero sample`: prompts, seeds, the end of a text, a context that is full, JSON; checkpoints go on
# as the run that wrote them did; errors are one line.
# ctest: timeout=90
set -u
. "$(dirname "$0")/harness/program.sh"

words() { # little-endian int32
    for word; do printf '%b' "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $((word & 255)) $((word >> 8 & 255)) $((word >> 16 & 255)) $((word >> 24 & 255)))"; done
}
# model FILE V: llm.c's of one block, T 16, C 8, whose weights are 0, so that all tokens are as likely.
model() {
    local padded=$((($2 + 127) / 128 * 128))
    { words 20240326 3 16 "$2" 1 2 8 $padded; head -c $((1024 - 32)) /dev/zero
      head -c $((4 * (padded * 8 + 16 * 8 + 12 * 64 + 13 * 8 + 2 * 8))) /dev/zero; } >"$1"
}
model "$work/bytes.bin" 256
model "$work/pairs.bin" 259
cp "$work/bytes.bin" "$work/unnamed"
printf '#version: 0.2\nt h\nth e\n' >"$work/vocab.bpe"
sample() { run sample --checkpoint "$work/bytes.bin" "$@"; }

# Greedy: of equals the lowest, byte 0, which no terminal is sent.
sample --prompt 'Hé' --tokens 2 --temperature 0
printf 'Hé\xef\xbf\xbd\xef\xbf\xbd\n' | cmp -s - "$work/out" || fail "greedy: $(od -c "$work/out")"
grep -q '^# prompt 3 tokens' "$work/err" && grep -q '^# text   2 tokens' "$work/err" || fail "times: $(cat "$work/err")"
grep -q '^# the context' "$work/err" && fail "a context that is not full: $(cat "$work/err")"
cp "$work/out" "$work/greedy"
printf 'Hé' >"$work/prompt"
sample --prompt-file "$work/prompt" --tokens 2 --top-k 1
cmp -s "$work/greedy" "$work/out" || fail "from a file, or of the first alone: $(od -c "$work/out")"
"$ringzero" sample --checkpoint "$work/unnamed" --prompt-file - --tokens 2 --temperature 0 --dtype bfloat16 --threads 1 \
    <"$work/prompt" 2>"$work/err" | cmp -s "$work/greedy" - || fail "from standard input, in bfloat16: $(cat "$work/err")"

# Seeds: the same again, another otherwise; the second of two is the first of the next seed.
sample --prompt a --tokens 100 --seed 7 --count 2 --json "$work/json"
cp "$work/out" "$work/two"
[ "$(wc -l <"$work/json")" -eq 2 ] || fail "JSON: $(cat "$work/json")"
sed -n 2p "$work/json" >"$work/second"
parses "$work/second"
grep -q '^# the context of 16 tokens was full 20 times: the text went on from its last 8$' "$work/err" || fail "full: $(cat "$work/err")"
sample --prompt a --tokens 100 --seed 7 --count 2
cmp -s "$work/out" "$work/two" || fail "the same seed, another text"
sample --prompt a --tokens 100 --seed 8 --json "$work/json"
tokens() { sed -E 's/.*"tokens":\[([^]]*)\].*/\1/' "$1"; }
[ "$(tokens "$work/json")" = "$(tokens "$work/second")" ] || fail "the second text is not that of its seed: $(cat "$work/json")"
[ "$(tokens "$work/json" | tr ',' '\n' | sort -u | wc -l)" -gt 50 ] || fail "draws are few: $(cat "$work/json")"
sample --prompt a --tokens 20 --seed 8 --top-p 0.001 --json "$work/json"
[ "$(tokens "$work/json" | tr ',' '\n' | sort -u)" = 0 ] || fail "--top-p: $(cat "$work/json")"

# Pairs: the text ends where the model ends it; --go-on. 1 in 259 draws is the end.
pairs() { run sample --checkpoint "$work/pairs.bin" --vocabulary "$work/vocab.bpe" --json "$work/json" "$@"; }
pairs --prompt 'the th' --tokens 3000
grep -q '"prompt_tokens":3,' "$work/json" && grep -q ',258\],' "$work/json" && grep -q '"end_of_text":true' "$work/json" || fail "ends: $(cat "$work/json")"
pairs --prompt 'the th' --tokens 3000 --go-on
[ "$(tokens "$work/json" | tr ',' '\n' | wc -l)" = 3000 ] && grep -q '"end_of_text":false' "$work/json" || fail "--go-on: $(cat "$work/json")"
pairs --tokens 1
grep -q '"prompt_tokens":1,' "$work/json" || fail "no prompt: $(cat "$work/json")"

# A checkpoint, of any split: the greedy text that the run itself gives at its end.
for ((i = 0; i < 800; i++)); do echo "the ring sends chunk $((i * 7 % 11)) to every rank"; done >"$work/text"
continues() { # DIR OPTIONS OF THE MODEL AND OF RANKS…
    local dir=$1
    shift
    run train --data "$work/text" --positions 32 --batch 4 --steps 40 --warmup 5 --lr 1e-2 --validate-every 0 "$@" --checkpoint "$dir" \
        --sample 24 --prompt 'the ' --temperature 0
    sed -n '/^# sample/,/^# [bl]/{//!p}' "$work/out" >"$work/expected"
    [ "$(wc -c <"$work/expected")" -eq 29 ] || fail "the run's own sample: $(cat "$work/expected")"
    run sample --checkpoint "$dir" --prompt 'the ' --tokens 24 --temperature 0
    cmp -s "$work/expected" "$work/out" || fail "$*: $(cat "$work/out") instead of $(cat "$work/expected")"
}
continues "$work/gpt2" --ranks 2 --stage 3 --layers 2 --heads 2 --channels 16
continues "$work/llama" --model llama-nano --ranks 4 --tensor 2 --pipeline 2 --accumulate 2 --layers 2 --heads 4 --kv-heads 2 --channels 32 --hidden 32
run sample --checkpoint "$work/llama/step-00000040" --prompt 'the ' --tokens 24 --temperature 0
cmp -s "$work/expected" "$work/out" || fail "the step's directory: $(cat "$work/err")"

refused "--checkpoint is missing" sample --prompt a
refused "--prompt and --prompt-file are given" sample --checkpoint "$work/bytes.bin" --prompt a --prompt-file b
refused "--ranks is 2" sample --checkpoint "$work/bytes.bin" --ranks 2
refused "--device is \"cuda:1\", expected host" sample --checkpoint "$work/bytes.bin" --device cuda:1
refused "--top-p is \"2\", expected a number from 0 to 1" sample --checkpoint "$work/bytes.bin" --top-p 2
refused "--temperature is \"nan\"" sample --checkpoint "$work/bytes.bin" --temperature nan
refused "found \"text\"" sample --checkpoint "$work/bytes.bin" text
refused "the model has 259 tokens and no vocabulary is given" sample --checkpoint "$work/pairs.bin"
refused "has 259 tokens with the end of text, the model 256" sample --checkpoint "$work/bytes.bin" --vocabulary "$work/vocab.bpe"
failing() { # WORDS ARGUMENTS…: exit code 1 and one line
    local words=$1
    shift
    "$ringzero" sample "$@" >/dev/null 2>"$work/err"
    [ $? -eq 1 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -qF -- "$words" "$work/err" || fail "$*: $(cat "$work/err")"
}
failing "$work/none.bin: cannot be read" --checkpoint "$work/none.bin"
failing "$work/vocab.bpe: " --checkpoint "$work/vocab.bpe"
mkdir "$work/empty"
failing "$work/empty" --checkpoint "$work/empty"
failing "--prompt-file $work/none: cannot be read" --checkpoint "$work/bytes.bin" --prompt-file "$work/none"
refused "--json $work/none/json cannot be written" sample --checkpoint "$work/bytes.bin" --json "$work/none/json"
"$ringzero" sample --checkpoint "$work/bytes.bin" >/dev/full 2>"$work/err"
[ $? -eq 1 ] && grep -q 'standard output cannot be written' "$work/err" || fail "no room for the text: $(cat "$work/err")"
exit $failed
