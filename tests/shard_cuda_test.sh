#!/usr/bin/env bash
# Training on a device is training on the host: losses and norms of three steps are near in float32 (relative 1e-5), in every
# stage, with two ranks, with tensors that ranks share and pipelines, with accumulation, recomputation, an offloaded optimizer, a
# checkpoint resumed, a sample, scores of questions with endings; and every ledger is as predicted. On the simulator, in its three
# orders of threads. RINGZERO_TEST_SECONDS: what has not begun by then is left out.
# ctest: timeout=300 labels=plain
set -u
program=${RINGZERO:-build/ringzero}
device=${RINGZERO_TEST_DEVICE:-cudasim}
directory=$(mktemp -d /tmp/ringzero-train-cuda-XXXXXX)
trap 'rm -rf "$directory"' EXIT
for i in $(seq 400); do echo "the ring sends chunk $i to every rank and adds $((i * 7919 % 1000))."; done > "$directory/text"
word() { for w; do printf "\\x$(printf %02x $((w & 255)))\\x$(printf %02x $((w >> 8 & 255)))"; done; }
# example NUMBER LABEL ENDINGS LIST…: of the context, then of each ending.
example() { word 65535 $((2 * ($# + 2))) "$@"; }
{ word 55434 308 1 0 30 0 40 0; head -c 1008 /dev/zero
  for i in $(seq 0 29); do
    example $i $((i * i % 13 % 4)) 4  2 116 $((97 + i % 26))  1 $((130 - i))  3 32 114 $((96 + i * 7 % 26)) \
      2 $((97 + i * 5 % 26)) 32  2 9 $((90 + i))
  done
} > "$directory/questions.bin"
questions="--hellaswag $directory/questions.bin --hellaswag-every 1"
shape="--data $directory/text --layers 2 --channels 32 --heads 2 --positions 16 --batch 2 --steps 3 --validate-batches 2"
$program train --device "$device" $shape --stop-at 1 > "$directory/probe" 2>&1 || {
  grep -q "needs libringzero_" "$directory/probe" && { echo "skipped: $(tail -1 "$directory/probe")"; exit 77; }
  tail -3 "$directory/probe"; exit 1
}
failures=0

# Heads that no kernel is made for are refused, in a rank of its own process and in one of several.
for ranks in 1 2; do
  $program train --device "$device" $shape --ranks $ranks --heads 1 --channels 130 > "$directory/out" 2>&1
  code=$?
  [ $code = 1 ] && grep -q "rank 0/$ranks: attention on CUDA with heads of 130 columns; expected at most 128: use more heads" \
    "$directory/out" || { echo "heads of 130: exit code $code: $(tail -1 "$directory/out")"; failures=$((failures + 1)); }
done

# numbers FILE: loss and norm of each step, the validation's loss, scores.
numbers() { grep -oE '"(loss|norm|val_loss|hellaswag|hellaswag_sum)":[-0-9.e+]+' "$1" | cut -d: -f2; }

# same WHAT TOLERANCE: the two files of the last runs.
same() {
  paste <(numbers "$directory/host") <(numbers "$directory/device") | awk -v most="$2" '
    { d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > most * $1) { print "    expected " $1 ", found " $2; bad = 1 } n++ }
    END { exit bad || n < 7 }' || { echo "$1: the device's numbers differ"; failures=$((failures + 1)); }
}

# run DEVICE FILE OPTION…
run() {
  local device=$1 file=$2
  shift 2
  timeout 60 $program train --device "$device" $shape --json "$directory/$file" "$@" > "$directory/out" 2>&1 ||
    { echo "$device $*: $(tail -1 "$directory/out")"; failures=$((failures + 1)); return; }
  grep -q "measured and predicted: OK" "$directory/out" || { echo "$device $*: ledger: $(tail -1 "$directory/out")"; failures=$((failures + 1)); }
}

left_out=0
both() {
  local tolerance=$1
  [ "$SECONDS" -lt "${RINGZERO_TEST_SECONDS:-9999}" ] || { left_out=$((left_out + 1)); return; }
  shift
  run host host "$@"
  run "$device" device "$@"
  same "$*" "$tolerance"
}

# scored: each of the three steps of the device's last run has both scores, which differ.
scored() {
  [ "$left_out" = 0 ] || return 0
  local scores='"hellaswag":0\.[0-9]*[1-9][0-9]*,"hellaswag_sum":0\.[0-9]*[1-9]'
  [ "$(grep -cE "$scores" "$directory/device")" = 3 ] && ! grep -qE '"hellaswag":([0-9.]+),"hellaswag_sum":\1,' "$directory/device" ||
    { echo "scores: found $(grep -oE '"hellaswag[_a-z]*":[0-9.]+' "$directory/device" | xargs)"; failures=$((failures + 1)); }
}

# The same bits in every stage (I3), also where shards are no multiple of what cuBLAS looks at: how its operands are aligned.
for dtype in float32 bfloat16; do
  run "$device" stage0 --ranks 3 --dtype $dtype
  for stage in 1 2 3; do
    run "$device" device --ranks 3 --dtype $dtype --stage $stage
    [ "$(numbers "$directory/device")" = "$(numbers "$directory/stage0")" ] ||
      { echo "stage $stage, $dtype: other bits than stage 0"; failures=$((failures + 1)); }
  done
done

for stage in 0 1 2 3; do both 1e-5 --stage $stage --ranks 2; done
both 1e-5 --stage 3 --ranks 2 --offload optimizer --accumulate 2 --checkpoint-activations full
both 1e-5 --stage 2 --sample 3 --no-overlap --checkpoint-activations partitioned
both 1e-5 --stage 1 --ranks 2 --checkpoint-activations offload $questions
scored
both 1e-2 --stage 2 --ranks 2 --dtype bfloat16 --offload optimizer
both 1e-2 --stage 1 --ranks 2 --dtype float16 --gradient-dtype float32
both 1e-2 --stage 3 --ranks 2 --dtype bfloat16 --stochastic-rounding
both 1e-5 --tensor 2 --ranks 2 --stage 1 --sample 3 --checkpoint-activations full
both 1e-5 --tensor 2 --ranks 4 --stage 3 --checkpoint-activations partitioned
both 1e-2 --tensor 2 --ranks 2 --dtype bfloat16 --sample 2
both 1e-5 --tensor 2 --ranks 2 --stage 1 --checkpoint-activations offload --offload optimizer
both 1e-5 --pipeline 2 --ranks 2 --stage 0 --accumulate 2
[ "$left_out" != 0 ] || grep -Eq '"bubble":.*"predicted":0.333333,"measured":0\.[0-9]*[1-9]' "$directory/device" ||
  { echo "no share of waiting beside the bubble: $(grep bubble "$directory/device")"; failures=$((failures + 1)); }
both 1e-5 --pipeline 2 --ranks 4 --stage 3 --accumulate 3 --checkpoint-activations full --sample 3
both 1e-5 --pipeline 2 --tensor 2 --ranks 8 --stage 3 --accumulate 2 --checkpoint-activations offload $questions
scored
both 1e-2 --pipeline 2 --tensor 2 --ranks 4 --stage 1 --accumulate 2 --dtype bfloat16
both 1e-5 --tensor 2 --ranks 2 --sequence-parallel --stage 1 --sample 3
both 1e-5 --tensor 2 --ranks 2 --sequence-parallel --checkpoint-activations offload
llama="--model llama-nano --lr 6e-4 --heads 4 --kv-heads 2 --hidden 48"
both 1e-5 $llama --stage 3 --ranks 2 --checkpoint-activations full --sample 3
both 1e-2 $llama --stage 2 --ranks 2 --dtype bfloat16
both 1e-5 $llama --pipeline 2 --tensor 2 --ranks 4 --stage 2 --accumulate 2 --checkpoint-activations partitioned
both 1e-2 $llama --tensor 2 --ranks 2 --sequence-parallel --dtype bfloat16 --checkpoint-activations full

CUDASIM_ORDER=reverse run "$device" device --stage 3 --ranks 2
run host host --stage 3 --ranks 2
same "threads in reverse order" 1e-5
CUDASIM_ORDER=random CUDASIM_DELAY_US=200 run "$device" device --stage 2 --ranks 2
same "threads in random order, with delays" 1e-5

# Where cuBLASLt has no algorithm, bias and GELU follow their products.
CUDASIM_REFUSE=algorithm run "$device" device --dtype bfloat16
run host host --dtype bfloat16
same "no algorithm of cuBLASLt" 1e-2

run "$device" whole --stage 3 --ranks 2
run "$device" first --stage 3 --ranks 2 --stop-at 2 --checkpoint "$directory/saved"
run "$device" second --stage 1 --ranks 2 --resume "$directory/saved"
whole=$(grep -o '"step":3,"loss":[-0-9.e+]*' "$directory/whole")
[ -n "$whole" ] && grep -q "$whole" "$directory/second" ||
  { echo "resumed: expected $whole, found $(grep -o '"step":3,"loss":[-0-9.e+]*' "$directory/second")"; failures=$((failures + 1)); }
[ "$left_out" = 0 ] || echo "$left_out settings were left out after $SECONDS s"
echo "training on $device: $failures failures"
[ "$failures" = 0 ]
