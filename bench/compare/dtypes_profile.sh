#!/usr/bin/env bash
# dtypes_profile: where a training step with weights of 16 bits takes another time than with float32: its operations side by side, in
# milliseconds a step, of one rank with one thread on one core.
#
#   bench/compare/dtypes_profile.sh [ROUNDS] [MODEL] [BATCH] [DTYPE]     after building
#
# Shared machines change their speed by the second: each round runs both dtypes for a few steps, every second round backwards, and
# attention, which is the same whatever weights are, is a clock: the other dtype's times are brought to the speed that float32 had. A
# cell is the median over rounds, a difference the median of those within a round. What 16 bits cost more or less does not depend on
# the batch, so a batch of 1 shows it in a quarter of the time of one of 4.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OPENBLAS_NUM_THREADS=1 LC_ALL=C
rounds=${1:-3} model=${2:-gpt2-124m} batch=${3:-1} dtype=${4:-bfloat16}

# Digits as text, and two of them as one id of GPT-2 in a shard: the time of a step does not depend on tokens.
seq 1 50000 >"$work/text"
head -c 3000 "$work/text" >"$work/text.held"
{ printf '\x88\xd8\x34\x01\x01\0\0\0\xa0\x86\x01\0'; head -c 1012 /dev/zero; head -c 200000 "$work/text"; } >"$work/shard.bin"
{ printf '\x88\xd8\x34\x01\x01\0\0\0\xe8\x03\0\0'; head -c 1012 /dev/zero; head -c 2000 "$work/text"; } >"$work/held.bin"

# rows ROUND DTYPE: round, dtype, name and milliseconds a step of every operation, and of all together
rows() {
  local data=(--data "$work/shard.bin" --validation "$work/held.bin")
  [[ $model = gpt2-* ]] || data=(--data "$work/text" --validation "$work/text.held")
  taskset -c 0 build/ringzero train --threads 1 --model "$model" --dtype "$2" --batch "$batch" --seq 256 --steps 4 "${data[@]}" \
    --validate-every 0 --profile --json "$work/steps" >"$work/shown"
  sed -n '/^{"profile"/{s/.*"steps":\([0-9]*\).*"rows":\[\([^]]*\)\].*/\1{\2/;p}' "$work/steps" | tr '{' '\n' |
    awk -v round="$1" -v dtype="$2" 'BEGIN { OFS = "\t" }
      NR == 1 { steps = $1; next }
      match($0, /"name":"[^"]*"/) { name = substr($0, RSTART + 8, RLENGTH - 9) }
      match($0, /"ms":[0-9.]*/) && name != "validation" {
        ms = substr($0, RSTART + 5, RLENGTH - 5) / steps
        all += ms
        print round, dtype, name, ms
      }
      END { print round, dtype, "all", all }'
}

for ((round = 1; round <= rounds; round++)); do
  order="float32 $dtype"
  [ $((round % 2)) -eq 1 ] || order="$dtype float32"
  for each in $order; do rows "$round" "$each"; done
done | awk -F '\t' -v other="$dtype" '
  function median(values, count,    i, j, v) {
    for (i = 2; i <= count; i++) {
      v = values[i]
      for (j = i - 1; j >= 1 && values[j] > v; j--) values[j + 1] = values[j]
      values[j + 1] = v
    }
    return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
  }
  { ms[$3, $2 == other, $1] = $4; names[$3]; if ($1 > rounds) rounds = $1 }
  $3 ~ /^attention/ { clock[$2 == other, $1] += $4 }
  END {
    printf "%10s %10s %10s  %s\n", "float32", other, "more", "ms a step, at the same speed"
    fflush()
    for (name in names) {
      for (r = 1; r <= rounds; r++) {
        a[r] = ms[name, 0, r] + 0; b[r] = ms[name, 1, r] * clock[0, r] / clock[1, r]; d[r] = b[r] - a[r]
      }
      printf "%10.2f %10.2f %10.2f  %s\n", median(a, rounds), median(b, rounds), median(d, rounds), name | "sort -k1,1gr -k2,2gr"
    }
  }'
