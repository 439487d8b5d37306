#!/bin/bash
# `ringzero plan` from outside: its JSON beside the ledger of `ringzero train`, --memory to the byte, --paper, bad options.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"

# says WORD… -- ARGUMENTS…: succeeds, and the output holds each word
says() {
    local words=()
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    run "$@"
    for word in "${words[@]}"; do
        grep -qF -- "$word" "$work/out" || fail "\"$word\" not found in the output of: $*: $(cat "$work/out")"
    done
}

# planned KEY [LINE], predicted KEY, measured KEY: numbers of the files "plan" and "train"; nothing where the key is not
planned() { sed -n "${2:-1}p" "$work/plan" | sed -n "s/.*\"$1\":\([a-z0-9]*\)[,}].*/\1/p"; }
predicted() { sed -n "s/.*\"$1\":{\"measured\":[0-9]*,\"predicted\":\([0-9]*\)}.*/\1/p" "$work/train"; }
measured() { sed -n "s/.*\"$1\":{\"measured\":\([0-9]*\),.*/\1/p" "$work/train"; }

for ((i = 0; i < 800; i++)); do echo "the ring sends chunk $((i * 7 % 11)) to every rank"; done >"$work/text"

# ---- the numbers of a run: two steps of ten, so that no validation is among them ----
shape="--layers 2 --heads 2 --channels 36 --positions 16 --batch 2"
compare() {
    run plan $shape "$@" --json "$work/plan"
    run train $shape "$@" --data "$work/text" --steps 10 --stop-at 2 --validate-every 0 --json "$work/train"
    for tag in weights gradients optimizer activations checkpoints gathered workspace; do
        [ "$(planned ${tag}_held)" = "$(predicted ${tag}_held)" ] ||
            fail "$*: ${tag}_held is $(planned ${tag}_held), train predicts $(predicted ${tag}_held)"
    done
    for collective in all_reduce reduce_scatter all_gather broadcast; do
        local two=$(predicted ${collective}_sent)
        [ "$((2 * $(planned ${collective}_sent)))" -eq "${two:-0}" ] ||
            fail "$*: ${collective}_sent is $(planned ${collective}_sent), train predicts ${two:-0} in two steps"
    done
    for key in paper_bytes formula_bytes; do
        local found=$(sed -n "s/.*\"$key\":\([0-9]*\),.*/\1/p" "$work/train")
        [ $((2 * $(planned $key) - found)) -le 1 ] && [ $((found - 2 * $(planned $key))) -le 1 ] || # each is rounded
            fail "$*: $key is $(planned $key), train says $found in two steps"
    done
}
for stage in 0 1 2 3; do
    for ranks in 1 2 3 8; do compare --ranks $ranks --stage $stage; done
    compare --ranks 2 --stage $stage --accumulate 3 --seq 9
    compare --ranks 4 --stage $stage --shard-group 2 --dtype bfloat16
    compare --ranks 3 --stage $stage --checkpoint-activations full --dtype bfloat16 --gradient-dtype float32
done
# ---- tensors that ranks share ----
for stage in 0 3; do
    compare --ranks 4 --tensor 2 --stage $stage --accumulate 2
    compare --ranks 2 --tensor 2 --stage $stage --checkpoint-activations partitioned
    compare --ranks 4 --tensor 2 --sequence-parallel --stage $stage --checkpoint-activations full
    two=$(predicted tensor_sum_sent) sums=$(planned tensor_sum_sent)
    [ "$sums" -gt 0 ] && [ $((2 * sums)) -eq "$two" ] || fail "tensor sums: $sums planned, $two predicted in two steps"
done
says "M = 4 ranks share every tensor" "of blocks, by the paper's formula" -- plan --model gpt2-124m --ranks 8 --tensor 4
# nano, 5 all-reduces a block, 2 of embedding and head, of 8·128·128 float32 over 2 ranks, and of 3 vectors of rows
run plan --model nano --ranks 2 --tensor 2 --stage 0 --checkpoint-activations full --json "$work/plan"
[ "$(planned tensor_sum_sent)" -eq $((22 * 8 * 128 * 128 * 4 + 3 * 8 * 128 * 4)) ] || fail "nano's tensor sums: $(planned tensor_sum_sent)"
[ "$(planned tensor_paper_bytes)" -eq $((4 * 12 * 8 * 128 * 128 * 4 / 2)) ] || fail "nano's by the formula: $(planned tensor_paper_bytes)"
refused "tensor is 2, heads are 25" plan --model gpt2-1558m --ranks 2 --tensor 2
refused "expected their product to divide the 3 ranks" plan --ranks 3 --tensor 2

compare --ranks 3 --stage 3 --gather broadcast --bucket-bytes 1K
# Parts this small would never open the ring's edges, which the plan counts.
RINGZERO_EXCHANGE_BYTES=256 compare --ranks 2 --stage 2 --unsharded-accumulation --accumulate 2
about=$(planned communication_held) held=$(measured communication_held)
[ $((2 * about)) -ge "$held" ] && [ "$about" -le $((2 * held)) ] ||
    fail "communication is planned as about $about bytes, but $held are held"

# ---- all stages, side by side ----
says "stage 0" "stage 3" "Ψ = 124.44 M" "2 + 2.67" -- plan --model gpt2-124m --ranks 8 --json "$work/plan"
[ "$(wc -l <"$work/plan")" -eq 4 ] || fail "expected four objects, one per stage"
for key in model layers ranks stage dtype gradient_dtype batch seq accumulate shard_group checkpoint_activations parameters \
    padded held_sum formula_held sent_sum paper_psi paper_bytes formula_psi formula_bytes wire scalars_sent memory fits largest_layers largest_batch \
    sent_per_token largest_sent_per_token largest_batches; do
    [ "$(grep -c "\"$key\":" "$work/plan")" -eq 4 ] || fail "key $key is not in every object"
done
[ "$(planned stage 3)$(planned fits 3)" = 2null ] || fail "the third object is not of stage 2, or has a memory"

# ---- fragmentation ----
says "heap     FAILS at" "arenas   succeeds" -- plan --fragmentation --model mini --json "$work/replay"
grep -qE '"allocator":"heap",.*"fits":false.*"event":"gelu"' "$work/replay" || fail "the heap does not fail: $(cat "$work/replay")"
grep -qE '"allocator":"arenas",.*"fits":true.*"fragmentation":0,"event":null' "$work/replay" || fail "arenas fail"

# ---- memory: to the byte ----
sum=$(planned held_sum 1)
says "it fits" yes -- plan --model gpt2-124m --ranks 8 --memory "$sum" --stage 0 --json "$work/plan"
[ "$(planned fits)$(planned largest_layers)$(planned largest_batch)" = true128 ] || fail "it does not fit exactly: $(cat "$work/plan")"
says "it fits" -- plan --model gpt2-124m --ranks 8 --memory $((sum - 1)) --stage 0 --json "$work/plan"
[ "$(planned fits)$(planned largest_layers)$(planned largest_batch)" = false117 ] || fail "it fits: $(cat "$work/plan")"
grep -qE '"largest_batches":\{"none":7,"full":[0-9]+,"partitioned":[0-9]+,"offload":[0-9]+\}' "$work/plan" || fail "no batches for each way to keep activations"
says none -- plan --memory 1K

# ---- a limit on a run: what the plan says it holds is enough, and half of it is not ----
run plan $shape --ranks 2 --stage 1 --json "$work/plan"
small=$(($(planned held_sum) - $(planned communication_held)))
limited="train $shape --ranks 2 --stage 1 --data $work/text --steps 2 --validate-every 0"
says "OK" -- $limited --memory-limit $((small + 2 * about))
"$ringzero" $limited --memory-limit $((small / 2)) >"$work/out" 2>"$work/err"
[ $? -eq 1 ] && [ "$(grep -c "^ringzero train: rank [01]/2: .* bytes more, but .* limit of $((small / 2)) " "$work/err")" -eq 2 ] ||
    fail "expected exit code 1 and a line from each rank: $(cat "$work/err")"

# ---- the paper ----
says "31.41 (31.4)" "16.64 (16.6)" "1.88 (1.88)" "0.12 (0.12)" "2013.67" "60.40 GB" "24.00 GB" "3.30" "3.51" -- \
    plan --paper --json "$work/paper"
[ "$(grep -c '"stage":' "$work/paper")" -eq 54 ] && [ "$(grep -c '"figure":' "$work/paper")" -eq 12 ] ||
    fail "expected 54 cells and 9 figures in JSON"
[ "$(grep -c '"configuration":"C[1-5]"' "$work/paper")" -eq 5 ] || fail "--paper has C1 to C5"
grep -qF '{"parameters":7500000000,"ranks":64,"stage":1,"gb":31.4062,"paper_gb":31.4}' "$work/paper" || fail "the cell of 7.5B at 64"

# ---- bad options: one line, exit code 2 ----
refused '--stage is "4", expected a whole number from 0 to 3' plan --stage 4
refused 'model is "giant"; expected one of: nano, mini, gpt2-124m' plan --model giant
refused "shard group is 3, expected a divisor of the 8 ranks" plan --ranks 8 --shard-group 3
refused "heads is 3" plan --heads 3
refused "seq is 129, expected at most 128" plan --seq 129
refused '--dtype is "int8", expected float32, bfloat16 or float16' plan --dtype int8
refused "gradient dtype" plan --gradient-dtype bfloat16
refused '--checkpoint-activations is "some", expected none, full, partitioned or offload' plan --checkpoint-activations some
refused '--memory is "lots", expected bytes' plan --memory lots
refused "--memory is 0" plan --memory 0
refused "stage 1" plan --stage 1 --unsharded-accumulation
refused "broadcast" plan --stage 2 --gather broadcast
refused "reckoned" plan --layers 2000000000
refused "reckoned" plan --channels 2000000000 --heads 1
refused "\"nano\"" plan nano
refused "--json" plan --json "$work/none/file"
says "--memory" "--paper" "Examples:" gpt2-1558m -- plan --help
says "plan" -- --help

# ---- Llama ----
says "llama-1b: Ψ = 1235.81 M parameters, L16 NH32 KV8 C2048 V128256, T up to 8192" -- plan --model llama-1b --ranks 64 --stage 3 \
    --batch 1 --checkpoint-activations full
says "L2 NH4 KV2 C32 H48 V256" -- plan --model llama-nano --layers 2 --heads 4 --kv-heads 2 --channels 32 --hidden 48
refused "heads is 4, kv_heads is 3" plan --model llama-nano --heads 4 --kv-heads 3

exit $failed
