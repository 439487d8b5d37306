#!/bin/bash
# Profile and trace of a run on a device, whose times are those of events on its stream: on the simulator, or RINGZERO_TEST_DEVICE.
# ctest: timeout=120 labels=plain
program=${RINGZERO:?path of the program}
export RINGZERO_TEST_DEVICE=${RINGZERO_TEST_DEVICE:-cudasim}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
for i in $(seq 100); do echo "the ring sends chunk $i to every rank"; done >"$directory/text"
$program train --device "$RINGZERO_TEST_DEVICE" --data "$directory/text" --layers 1 --heads 1 --channels 8 --positions 8 --batch 1 --steps 1 \
    --validate-batches 1 >"$directory/probe" 2>&1 || {
    grep -q "needs libringzero_" "$directory/probe" && { echo "skipped: $(tail -1 "$directory/probe")"; exit 77; }
    tail -3 "$directory/probe"
    exit 1
}
here=$(dirname "$0")
bash "$here/bench_train_profile_test.sh" && bash "$here/bench_train_trace_test.sh"
