#!/bin/bash
# `ringzero convert`: between all kinds and back with the same bits; a run of 8 ranks becomes one file, and what is converted trains on;
# each fault is one line; a conversion that is killed leaves nothing that passes for whole.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"
golden=$(dirname "$0")/golden/gpt2_hf_golden.safetensors

# fails WORDS ARGUMENTS…: exit code 1, one line that holds the words.
fails() {
    local words=$1
    shift
    "$ringzero" "$@" >"$work/out" 2>"$work/err"
    [ $? -eq 1 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -qF -- "$words" "$work/err" || fail "$*: \"$words\" is not in: $(cat "$work/err")"
}

# There and back: each kind from each other.
run convert "$golden" "$work/start" --heads 3 --json "$work/json"
parses "$work/json"
grep -q '"parameters":' "$work/json" || fail "json is $(cat "$work/json")"
grep -qF "gpt2, L2 NH3 C24 V53, T up to 12: 16056 parameters" "$work/out" || fail "the summary: $(cat "$work/out")"
grep -qF "train on with: ringzero train --model nano --layers 2 --heads 3 --channels 24 --vocab 53 --positions 12 --resume" "$work/out" ||
    fail "how to train on: $(cat "$work/out")"
mkdir "$work/hf"
run convert "$work/start" "$work/hf/model.safetensors"
parses "$work/hf/config.json"
grep -q '"n_head":.*3' "$work/hf/config.json" || fail "config.json is $(cat "$work/hf/config.json")"
run convert "$work/hf" "$work/again" # the folder; its config.json tells the heads
cmp "$work/start/step-00000000/shard-00000-of-00001.bin" "$work/again/step-00000000/shard-00000-of-00001.bin" || fail "checkpoint -> safetensors -> checkpoint"
cmp "$work/start/step-00000000/manifest.json" "$work/again/step-00000000/manifest.json" || fail "their manifests"
run convert --from safetensors "$work/hf" "$work/said" # and so where the kind is given
cmp "$work/again/step-00000000/shard-00000-of-00001.bin" "$work/said/step-00000000/shard-00000-of-00001.bin" || fail "--from safetensors of a folder"
run convert "$work/start/step-00000000" "$work/model.bin"
run convert "$work/model.bin" "$work/third.safetensors"
cmp "$work/hf/model.safetensors" "$work/third.safetensors" || fail "checkpoint -> llm.c -> safetensors"
run convert "$work/start" "$work/half.safetensors" --dtype float16
run convert "$work/half.safetensors" "$work/half.bin" # float32: llm.c has no float16
run convert "$work/half.bin" "$work/half" --from llmc --to checkpoint
run convert "$work/half" "$work/half2.safetensors" --dtype float16
cmp "$work/half.safetensors" "$work/half2.safetensors" || fail "float16 there and back"

# A run of 8 ranks, with tensors and blocks shared: into one file, and that at another split again.
head -c 60000 /dev/urandom | base64 -w 60 >"$work/text"
model=(--layers 2 --heads 4 --channels 32 --positions 16 --seq 16 --batch 2 --data "$work/text")
run train "${model[@]}" --ranks 8 --tensor 2 --pipeline 2 --accumulate 2 --stage 2 --steps 3 --checkpoint "$work/run"
run convert "$work/run" "$work/run.safetensors"
run train "${model[@]}" --ranks 1 --lr 0 --steps 4 --resume "$work/run" --checkpoint "$work/one" # learns nothing
run convert "$work/one" "$work/one.safetensors"
cmp "$work/run.safetensors" "$work/one.safetensors" || fail "a checkpoint of 8 ranks, and the same of one"
run convert "$work/run.safetensors" "$work/next" --heads 4
run train "${model[@]}" --ranks 2 --stage 3 --steps 2 --resume "$work/next" --checkpoint "$work/next" --json "$work/json"
grep -q '"step":1,' "$work/json" || fail "it does not begin with step 1: $(head -2 "$work/json")"
[ -e "$work/next/step-00000002/manifest.json" ] || fail "no checkpoint of step 2: $(ls "$work/next")"
grep -q warn "$work/err" && fail "resuming what has no settings warns of them: $(cat "$work/err")"

# Llama: Hugging Face's file too, llm.c's not.
run train --model llama-nano --layers 1 --channels 16 --hidden 24 --positions 8 --seq 8 --batch 1 --data "$work/text" --steps 1 --ranks 1 --checkpoint "$work/llama"
refused "GPT-2's tensors only" convert "$work/llama" "$work/llama.bin"
mkdir "$work/llama-hf"
run convert "$work/llama" "$work/llama-hf/model.safetensors"
parses "$work/llama-hf/config.json"
run convert "$work/llama-hf" "$work/llama2"
grep -qF -- "--model llama-nano --layers 1 --heads 8 --kv-heads 4 --channels 16 --hidden 24" "$work/out" || fail "Llama's options: $(cat "$work/out")"
run convert "$work/llama2" "$work/llama3.safetensors"
cmp "$work/llama-hf/model.safetensors" "$work/llama3.safetensors" || fail "Llama there and back"
golden_llama=$(dirname "$0")/golden/llama_hf_golden.safetensors # no preset turns heads as it does
run convert "$golden_llama" "$work/llama500"
grep -qF "its rotary base is 500, expected 10000" "$work/out" || fail "a base of 500: $(cat "$work/out")"
grep -q "train on with" "$work/out" && fail "a model that train has not: $(cat "$work/out")"

# Faults.
refused "expected two paths" convert "$work/start"
refused "found \"c\", expected two paths only" convert a b c
refused "--to is \"gguf\"" convert a b --to gguf
refused "$work/text: is no directory, and ends in neither" convert "$work/text" "$work/other"
refused "$work/model.bin: is there already" convert "$work/start" "$work/model.bin"
refused "holds a checkpoint of step 0 already" convert "$work/model.bin" "$work/start"
refused "expected float32" convert "$work/model.bin" "$work/other" --dtype bfloat16
refused "expected float32 or bfloat16" convert "$work/start" "$work/other.bin" --dtype float16
refused "model.heads is 3, 4 were asked for" convert "$work/start" "$work/other.bin" --heads 4
fails "$work/none: found no checkpoint" convert "$work/none" "$work/other" --from checkpoint
fails "none/model.bin.part: cannot be written: No such file or directory: make its folder first" convert "$work/start" "$work/none/model.bin"
fails "$work/none.bin: cannot be read" convert "$work/none.bin" "$work/other"
head -c 5000 "$work/model.bin" >"$work/cut.bin"
fails "$work/cut.bin: 3976 bytes follow its header, expected" convert "$work/cut.bin" "$work/other"
printf X | dd of="$work/again/step-00000000/shard-00000-of-00001.bin" bs=1 seek=1000 conv=notrunc 2>/dev/null
fails "shard-00000-of-00001.bin: crc32 is" convert "$work/again" "$work/other"
(ulimit -f 20; "$ringzero" convert "$work/start" "$work/other" 2>"$work/err")
[ $? -eq 1 ] && grep -q "shard-00000-of-00001.bin: cannot be written: File too large" "$work/err" || fail "no room: $(cat "$work/err")"
ls "$work" | grep -qE '^other|part$' && fail "something is left: $(ls "$work")"

# Killed at any moment: whole, or not there; and the next one is not in the way.
run train --layers 8 --heads 4 --channels 256 --positions 16 --seq 16 --batch 1 --data "$work/text" --steps 1 --ranks 1 --validate-batches 1 --checkpoint "$work/large"
kills=0
for pause in 0.005 0.01 0.02 0.03 0.05; do
    rm -rf "$work/killed"
    "$ringzero" convert "$work/large" "$work/killed" >/dev/null 2>&1 &
    sleep $pause
    kill -9 $! 2>/dev/null && kills=$((kills + 1))
    wait $! 2>/dev/null
    if [ -e "$work/killed/step-00000000" ]; then
        run convert "$work/killed" "$work/killed.safetensors"
        rm -f "$work/killed.safetensors"
    else
        fails "found no checkpoint" convert "$work/killed" "$work/other" --from checkpoint
        run convert "$work/large" "$work/killed"
        [ "$(ls "$work/killed")" = step-00000000 ] || fail "left after a kill: $(ls "$work/killed")"
    fi
done
echo "$kills conversions were killed"
exit $failed
