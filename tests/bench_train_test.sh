#!/bin/bash
# `ringzero train` from outside: JSON lines, resumed bits, bad data files (T8), bad options, a full disk, a killed rank.
# ctest: timeout=90
program=${RINGZERO:?path of the program}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0
small="--layers 1 --heads 2 --channels 16 --positions 16 --batch 2 --warmup 2 --validate-every 0"

fail() {
    echo "failed: $*"
    failures=$((failures + 1))
}

# expect CODE WORD… -- COMMAND…: the exit code, and each word on standard output or error
expect() {
    local code=$1 words=()
    shift
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    timeout 20 "$@" >"$dir/out" 2>&1
    local found=$?
    [ $found -eq "$code" ] || { fail "exit code $found, expected $code: $*"; cat "$dir/out"; }
    for word in "${words[@]}"; do
        grep -qF -- "$word" "$dir/out" || { fail "\"$word\" not found in the output of: $*"; cat "$dir/out"; }
    done
}

# little-endian numbers
int32() { for n in "$@"; do printf "\\x$(printf %02x $((n & 255)))\\x$(printf %02x $((n >> 8 & 255)))\\x$(printf %02x $((n >> 16 & 255)))\\x$(printf %02x $((n >> 24 & 255)))"; done; }
header() { int32 "$1" "$2" "$3"; head -c 1012 /dev/zero; }
tokens() { for ((i = 0; i < $1; i++)); do printf '\x07\x00'; done; }

for ((i = 0; i < 800; i++)); do echo "the ring sends chunk $((i * 7 % 11)) to every rank"; done >"$dir/text"

# ---- it runs, and says what it did ----
expect 0 "# sample: 30 tokens" "measured and predicted: OK" "2 by shm" "L1 NH2 C16 V256" -- \
    "$program" train --ranks 2 --data "$dir/text" $small --steps 8 --sample 30 --prompt "the " --transport shm --json "$dir/whole"
[ "$(grep -c '^{"step":' "$dir/whole")" -eq 8 ] || fail "expected 8 lines of steps in JSON"
for key in step loss lr norm tokens_per_s step_ms wait_ms skipped loss_scale held sent received predicted_sent; do
    [ "$(grep -c "\"$key\":" "$dir/whole")" -eq 8 ] || fail "key $key is not on every line of a step"
done
tail -n 1 "$dir/whole" | grep -q '^{"ledger":{.*"all_reduce_sent":{"measured":\([0-9]*\),"predicted":\1}.*"ok":true}$' ||
    fail "the last line is no ledger with equal numbers: $(tail -n 1 "$dir/whole")"
grep '"step":8,' "$dir/whole" | grep -q val_loss || fail "no validation loss at the end"

# ---- validations: of as many batches as are asked for, the one at the end too; unless told otherwise that takes all ----
losses=()
for batches in "" 0 1000 1; do
    expect 0 "validation after step 2" -- "$program" train --ranks 2 --data "$dir/text" $small --steps 2 ${batches:+--validate-batches $batches}
    losses+=("$(sed -n 's/^# validation after step 2: \([0-9.]*\) .*/\1/p' "$dir/out")")
done
[ "${losses[0]}" = "${losses[1]}" ] && [ "${losses[0]}" = "${losses[2]}" ] && [ "${losses[0]}" != "${losses[3]}" ] ||
    fail "validations by default, of all, of 1000 batches and of one: ${losses[*]}"

# ---- its page, its picture, llm.c's lines ----
expect 0 "measured and predicted: OK" -- "$program" train --ranks 2 --data "$dir/text" $small --steps 8 --report "$dir/page.html" \
    --plot "$dir/loss.svg" --main-log "$dir/main.log"
[ "$(grep -c ' trl:[0-9.]* lr:[0-9.]* norm:[0-9.]*$' "$dir/main.log")" -eq 8 ] && grep -q '^s:8 tel:' "$dir/main.log" ||
    fail "llm.c's lines: $(cat "$dir/main.log")"
[ "$(grep -c '<svg' "$dir/page.html")" -eq 5 ] && grep -q 'Measured equals predicted on all 2 ranks' "$dir/page.html" ||
    fail "the page: $(cat "$dir/page.html")"
[ "$(wc -l <"$dir/loss.dat")" -eq 9 ] || fail "the picture's numbers: $(cat "$dir/loss.dat")"

# ---- questions with endings: two of them, of bytes; the score where llm.c has it ----
uint16() { for n in "$@"; do printf "\\x$(printf %02x $((n & 255)))\\x$(printf %02x $((n >> 8 & 255)))"; done; }
example() { uint16 65535 $((2 * ($# + 2))) "$@"; } # number, label, endings, then lists
questions() { int32 20240522 1 2 34; head -c 1008 /dev/zero; example 0 1 4  2 116 104  1 101  2 32 114  3 1 2 3  1 9; example 1 0 4  1 99  4 104 117 110 107  1 7  1 8  2 9 9; }
questions >"$dir/questions.bin"
expect 0 "# hellaswag after step 8: " " of 2 questions" "measured and predicted: OK" -- "$program" train --ranks 2 --data "$dir/text" $small --steps 8 \
    --hellaswag "$dir/questions.bin" --hellaswag-every 4 --main-log "$dir/main.log" --json "$dir/questions"
[ "$(grep -cE '^s:[48] eval:(0.0000|0.5000|1.0000)$' "$dir/main.log")" -eq 2 ] || fail "llm.c's lines of scores: $(cat "$dir/main.log")"
[ "$(grep -cE '"step":[48],.*"hellaswag":(0|0.5|1),"hellaswag_sum":(0|0.5|1),' "$dir/questions")" -eq 2 ] || fail "scores in JSON: $(cat "$dir/questions")"
expect 1 "$dir/text: header[0] (magic) is " "expected 20240522" -- "$program" train --data "$dir/text" $small --steps 1 --hellaswag "$dir/text"
expect 1 "--report $dir/none/page.html cannot be written: No such file or directory" -- \
    "$program" train --ranks 2 --data "$dir/text" $small --steps 8 --report "$dir/none/page.html"

# ---- every stage: the same losses; each step's bytes are those predicted ----
numbers() { sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*"norm":\([^,]*\),.*/\1 \2 \3/p' "$@"; }
numbers "$dir/whole" >"$dir/once"
stage() {
    local number=$1
    shift
    expect 0 "measured and predicted: OK on all ranks" "stage  $number:" "$@" -- \
        "$program" train --ranks 2 --data "$dir/text" $small --steps 8 --stage "$number" --json "$dir/stage" "${flags[@]}"
    numbers "$dir/stage" | cmp -s - "$dir/once" || fail "stage $number gives other losses than stage 0"
    sed -n 's/.*"sent":\({[^}]*}\),"received":{[^}]*},"predicted_sent":\({[^}]*}\),.*/\1 \2/p' "$dir/stage" >"$dir/bytes"
    awk '$1 != $2 || $1 !~ /"all_gather":[1-9]/ { exit 1 } END { exit NR != 8 }' "$dir/bytes" ||
        fail "stage $number: bytes of steps differ from what is predicted: $(cat "$dir/bytes")"
}
flags=()
stage 1 "weights whole, gradients whole, optimizer 1/2" "the paper's 2Ψ"
stage 2 "weights whole, gradients 1/2, optimizer 1/2" "the paper's 2Ψ"
flags=(--gather broadcast --checkpoint-activations full)
stage 3 "weights 1/2, gradients 1/2, optimizer 1/2" "the paper's 3Ψ" "computed again" broadcast_sent
expect 0 "2 groups of 2 ranks" "weights bfloat16 with a float32 master copy, gradients bfloat16, summed in float32" OK -- \
    "$program" train --ranks 4 --shard-group 2 --stage 3 --dtype bfloat16 --reduce-dtype float32 --data "$dir/text" $small --steps 2
expect 0 "as done, 4Ψ(N-1)/N" OK -- "$program" train --ranks 2 --stage 2 --accumulate 3 --data "$dir/text" $small --steps 2
expect 0 "gradients whole" OK -- \
    "$program" train --ranks 2 --stage 2 --accumulate 3 --unsharded-accumulation --data "$dir/text" $small --steps 2

# ---- two pretended hosts of two ranks, in two levels: the same losses in every stage ----
for number in 0 1 2 3; do
    port=$((20000 + RANDOM % 10000)) pids=()
    for rank in 0 1 2 3; do
        RINGZERO_HOST=h$((rank / 2)) RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 40 \
            "$program" train --data "$dir/text" $small --steps 4 --stage $number --json "$dir/hosts" >"$dir/out$rank" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "stage $number on two hosts: $(cat "$dir"/out?)"; done
    grep -q "measured and predicted: OK on all ranks" "$dir/out0" || fail "stage $number on two hosts, the ledger: $(cat "$dir/out0")"
    numbers "$dir/hosts" >"$dir/hosts$number"
    [ "$(wc -l <"$dir/hosts$number")" -eq 4 ] && cmp -s "$dir/hosts0" "$dir/hosts$number" ||
        fail "stage $number gives other losses than stage 0 on two hosts"
done

# ---- float16: steps that overflow are skipped and marked; at the floor it is over (T5) ----
half="--dtype float16 --data $dir/text $small --json $dir/half"
expect 0 "skipped: the gradient overflowed" scale OK -- \
    "$program" train --ranks 2 --stage 2 $half --steps 30 --loss-scale 1099511627776 --loss-scale-interval 2
grep -q '"step":1,.*"norm":null,.*"skipped":1,"loss_scale":1099511627776,' "$dir/half" || fail "step 1 was not skipped: $(head -n 1 "$dir/half")"
grep -q '"step":2,.*"loss_scale":549755813888,' "$dir/half" || fail "the loss scale was not halved"
grep '"step":30,' "$dir/half" | grep -q '"skipped":0,' || fail "the loss scale did not settle"
expect 1 "rank 0/2" "rank 1/2" "lowest loss scale" -- \
    "$program" train --ranks 2 $half --steps 30 --loss-scale 1099511627776 --loss-scale-floor 274877906944
[ "$(grep -c '"skipped":1,' "$dir/half")" -eq 2 ] || fail "expected two steps before the floor: $(cat "$dir/half")"

# ---- stopped and resumed, over tcp: the same bits ----
expect 0 "checkpoint of step 5" -- \
    "$program" train --ranks 2 --data "$dir/text" $small --steps 8 --stop-at 5 --checkpoint "$dir/run" --json "$dir/first" --transport tcp
expect 0 "resumed after step 5" -- \
    "$program" train --ranks 2 --data "$dir/text" $small --steps 8 --resume "$dir/run" --json "$dir/rest" --no-overlap --bucket-bytes 1K
numbers "$dir/first" "$dir/rest" >"$dir/parts"
cmp -s "$dir/parts" "$dir/once" || { fail "a resumed run differs from an uninterrupted one"; diff "$dir/parts" "$dir/once"; }

# ---- Llama: the same losses in every stage, recomputed, and resumed; another architecture is another model ----
llama="--model llama-nano $small --kv-heads 1 --hidden 24"
expect 0 "llama-nano: 0.01 M parameters, L1 NH2 KV1 C16 H24 V256" "# sample: 30 tokens" OK -- \
    "$program" train --ranks 2 --data "$dir/text" $llama --steps 6 --sample 30 --json "$dir/llama"
numbers "$dir/llama" >"$dir/once"
for flags in "--stage 1" "--stage 2 --checkpoint-activations full" "--stage 3"; do
    expect 0 OK -- "$program" train --ranks 2 --data "$dir/text" $llama --steps 6 $flags --json "$dir/stage"
    numbers "$dir/stage" | cmp -s - "$dir/once" || fail "Llama with $flags gives other losses"
done
expect 0 "checkpoint of step 4" -- \
    "$program" train --ranks 2 --data "$dir/text" $llama --steps 6 --stop-at 4 --checkpoint "$dir/llamas" --json "$dir/first"
expect 0 "resumed after step 4" -- \
    "$program" train --ranks 2 --data "$dir/text" $llama --steps 6 --stage 3 --resume "$dir/llamas" --json "$dir/rest"
numbers "$dir/first" "$dir/rest" | cmp -s - "$dir/once" || fail "a resumed Llama differs from an uninterrupted one"
expect 1 "model.architecture is llama, this run's is gpt2" -- \
    "$program" train --ranks 2 --data "$dir/text" $small --kv-heads 1 --hidden 24 --steps 6 --resume "$dir/llamas"

# Two tensor ranks, each with one of two heads of keys and values, twice: near what one process finds.
shared="--model llama-nano $small --heads 4 --kv-heads 2 --hidden 24 --steps 4"
expect 0 OK -- "$program" train --ranks 1 --data "$dir/text" $shared --batch 4 --json "$dir/alone"
for flags in "--stage 0" "--stage 3 --checkpoint-activations full"; do
    expect 0 OK "2 ranks share every tensor, 2 times" -- \
        "$program" train --ranks 4 --tensor 2 --data "$dir/text" $shared $flags --json "$dir/tensor"
    paste <(numbers "$dir/alone") <(numbers "$dir/tensor") | awk '
        function far(a, b) { return a - b > 1e-5 * a || b - a > 1e-5 * a }
        far($2, $5) || far($3, $6) { exit 1 }
        END { exit NR != 4 }' || { fail "Llama on tensor ranks, $flags"; cat "$dir/alone" "$dir/tensor"; }
done

# ---- T8: bad data files, told by every rank ----
header 12345 1 1000 >"$dir/magic.bin"; tokens 1000 >>"$dir/magic.bin"
header 20240520 1 1000 >"$dir/short.bin"; tokens 999 >>"$dir/short.bin"
header 20240520 1 0 >"$dir/none.bin"
header 20240520 1 1000 >"$dir/large.bin"; tokens 999 >>"$dir/large.bin"; printf '\x00\x02' >>"$dir/large.bin"
bad() {
    local file=$1
    shift
    expect 1 "rank 0/2: $dir/$file" "rank 1/2: $dir/$file" "expected" "$@" -- "$program" train --ranks 2 --data "$dir/$file" $small --steps 2
}
bad magic.bin magic 12345 20240520
bad none.bin ntok "0 tokens"
bad large.bin "token 999" 512 256
bad missing.bin "no such file"
expect 1 "rank 0/2: $dir/short.bin" "rank 1/2: $dir/short.bin" ntok 1000 999 -- \
    "$program" train --ranks 2 --data "$dir/short.bin" $small --steps 2

# ---- bad options: one line, exit code 2, nothing started ----
refused() {
    expect 2 "ringzero train: " "$@"
    [ "$(wc -l <"$dir/out")" -eq 1 ] || { fail "expected one line for: $*"; cat "$dir/out"; }
}
refused "--data" -- "$program" train --ranks 2
refused "--stage" 0 3 -- "$program" train --data "$dir/text" --stage 4
refused "--dtype" float32 bfloat16 float16 -- "$program" train --data "$dir/text" --dtype int8
refused "gradient dtype is float16" bfloat16 -- "$program" train --data "$dir/text" --dtype bfloat16 --gradient-dtype float16
refused "reduce dtype is bfloat16" float32 -- "$program" train --data "$dir/text" --reduce-dtype bfloat16
refused "--gather" broadcast -- "$program" train --data "$dir/text" --gather ring
refused "stage is 2" -- "$program" train --data "$dir/text" --stage 2 --gather broadcast
refused "--checkpoint-activations" none full -- "$program" train --data "$dir/text" --checkpoint-activations some
refused "stage 1" -- "$program" train --data "$dir/text" --stage 1 --unsharded-accumulation
refused "loss scale" floor -- "$program" train --data "$dir/text" --loss-scale 2 --loss-scale-floor 4
refused "--model" nano gpt2-124m -- "$program" train --data "$dir/text" --model giant
refused "heads is 3" -- "$program" train --data "$dir/text" --heads 3
refused "seq is 129" 128 -- "$program" train --data "$dir/text" --seq 129
refused "--lr" -- "$program" train --data "$dir/text" --lr fast
refused "stop at 9" -- "$program" train --data "$dir/text" --steps 8 --stop-at 9
refused "checkpoints are asked for" -- "$program" train --data "$dir/text" --checkpoint-every 2
refused "\"$dir/text\"" -- "$program" train "$dir/text"
expect 0 "--checkpoint" "Examples:" "--loss-scale-floor" gpt2-1558m -- "$program" train --help

# ---- no room for a checkpoint: an error, and the one before is whole ----
(
    ulimit -S -f 64
    expect 1 "cannot be written" "rank 0/2" "rank 1/2" -- "$program" train --ranks 2 --data "$dir/text" --layers 1 --heads 2 \
        --channels 64 --positions 16 --batch 2 --steps 2 --checkpoint "$dir/full" --transport tcp
    exit $failures
)
failures=$?
[ -z "$(ls "$dir/full")" ] || fail "a failed checkpoint left $(ls "$dir/full")"

# ---- a killed rank ends the job ----
"$program" train --ranks 2 --data "$dir/text" --steps 100000 --validate-every 0 --json "$dir/killed" >"$dir/out" 2>&1 &
job=$!
for ((i = 0; i < 100; i++)); do [ -s "$dir/killed" ] && break; sleep 0.1; done
victim=$(awk '{print $NF}' "/proc/$job/task/$job/children") # rank 1
kill -9 "$victim"
for ((i = 0; i < 150; i++)); do kill -0 $job 2>/dev/null || break; sleep 0.1; done
kill -9 $job 2>/dev/null && fail "the job goes on without a rank"
wait $job
code=$?
[ $code -ne 0 ] || fail "the job of a killed rank exited with 0"
grep -q "rank 1 was killed by signal 9" "$dir/out" && grep -q "rank 0/2: .*rank 1" "$dir/out" ||
    { fail "nobody says that rank 1 died"; cat "$dir/out"; }

[ $failures -eq 0 ] && echo "all passed"
exit $((failures != 0))
