#!/usr/bin/env bash
# quickstart: from a fresh Debian 12 to a trained GPT in under 5 minutes on two cores: installs what is missing, builds, measures
# the ring at 2 and 4 ranks, and trains a small transformer at 2 ranks on the text of the King James Bible.
#
#   bench/quickstart.sh [FOLDER]     FOLDER: for the text, the checkpoint and the log of losses; default build/quickstart
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/quickstart}
begin=$SECONDS
. bench/packages.sh

say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - begin)); }

say "installing what is missing"
need "${build_packages[@]}" bible-kjv bible-kjv-text

say "building"
cmake --preset release >build.log 2>&1 || { cat build.log; exit 1; }
cmake --build --preset release >>build.log 2>&1 || { tail -50 build.log; exit 1; }
mv build.log build/
ringzero=build/ringzero
mkdir -p "$folder"

for ranks in 2 4; do
  say "ring all-reduce, $ranks ranks, shared memory"
  "$ringzero" bench all_reduce --ranks "$ranks" -b 8 -e 64M -f 8 -n 10 -w 4
done

text=$folder/kjv.txt
if [ ! -s "$text" ]; then
  say "writing the text to $text"
  # Each verse comes as "Ge1:1 In the beginning …": the reference goes. Public domain, 4.1 MB.
  bible -f 'gen1:1-rev22:21' | sed -E 's/^[^ ]+ //' >"$text.part"
  mv "$text.part" "$text"
fi

say "training nano at 2 ranks"
"$ringzero" train --ranks 2 --model nano --data "$text" --steps "${RINGZERO_QUICKSTART_STEPS:-1000}" \
  --validate-every 100 --checkpoint "$folder/checkpoint" --json "$folder/train.json" --sample 400

say "loss against step"
# The log has one object per line; every fiftieth step as a bar, and the validation losses in full.
awk -F'[:,{}]' '
  { step = loss = val = ""
    for (i = 1; i < NF; i++) {
      if ($i == "\"step\"") step = $(i + 1)
      if ($i == "\"loss\"") loss = $(i + 1)
      if ($i == "\"val_loss\"") val = $(i + 1) }
    if (loss == "") next
    if (val == "null") val = ""
    if (step % 50 && val == "") next
    bar = ""; for (k = 0; k < loss * 12; k++) bar = bar "#"
    printf "%5d  %6.3f  %-7s %s\n", step, loss, val == "" ? "" : sprintf("(%.3f)", val), bar }' "$folder/train.json"
echo "   step  loss, validation loss in brackets, nats per byte"

say "done; the checkpoint is in $folder/checkpoint, the log in $folder/train.json"
