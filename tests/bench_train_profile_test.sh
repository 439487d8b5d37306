#!/bin/bash
# `ringzero train --profile`: rows add up to the steps, calls are those of the model's uses, FLOPs those of its formula, and
# the losses are the bits of a run that nobody looks at: sharded or not, with tensors shared, in a pipeline, on a device.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"
. "$(dirname "$0")/harness/small_run.sh"

# check FILE RANKS TENSOR PIPELINE MICROS AGAIN: the profile's line, judged by sums and counts alone
check() {
    python3 - "$@" <<'PYTHON'
import json, os, sys
on_host = os.environ.get("RINGZERO_TEST_DEVICE", "host") == "host"  # a stream's steps are not quite the caller's
path, ranks, tensor, pipeline, micros, again = sys.argv[1], *map(int, sys.argv[2:])
lines = [json.loads(line) for line in open(path)]
assert "ledger" in lines[-1], "the last line is the ledger"
[told] = [line["profile"] for line in lines if "profile" in line]
rows = {row["name"]: row for row in told["rows"]}
assert told["steps"] == 3, told["steps"]  # without the first
inside = [row for row in told["rows"] if row["name"] not in ("validation", "checkpoint")]
assert abs(sum(row["ms"] for row in inside) - told["ms"]) < 1e-3, "rows do not add up"
steps_ms = sum(line["step_ms"] for line in lines if line.get("step", 0) > 1)
assert not on_host or told["ms"] > steps_ms - 0.01, f"rows have {told['ms']} ms, the steps took {steps_ms}"
assert abs(sum(row["share"] for row in inside) - 1) < 1e-3, "shares do not add up"
assert told["mark_gflops"] > 0 and told["mark_copy_gbps"] > 0
L, C, V, T, B = 2, 16, 256, 16, 2
passes, blocks = told["steps"] * micros, L // pipeline
def calls(name, expected):
    found = rows.get(name, {"calls": 0})["calls"]
    assert found == expected, f"{name}: {found} calls, expected {expected}"
for layer in "qkv", "attproj", "fc", "fcproj":
    calls(layer + " forward", passes * blocks * (2 if again and layer != "fcproj" else 1))
    calls(layer + " backward data", passes * blocks)
    calls(layer + " backward weights", passes * blocks)
calls("attention backward", passes * blocks)
calls("the rest", told["steps"])
calls("read data", told["steps"])
calls("validation", 1)
calls("other", 0), calls("other linear", 0)
tokens, matrices = passes * B * T, 12 * C * C
forward = blocks * (2 * (3 * C * C + C * C + 4 * C * C) + 4 * C * T)
head = V * C if pipeline == 1 else 0
flops = tokens * (blocks * (6 * matrices + 12 * C * T) + 6 * head + again * forward) / tensor
found = sum(row["flops"] for row in told["rows"])
assert found == flops, f"{found} FLOPs, expected {flops}"
others = L * 13 * C + 2 * C + T * C  # norms, biases, positions
model = micros * B * T * (ranks // tensor // pipeline) * (6 * (L * matrices + V * C + others) + 12 * L * C * T)
assert told["model_flops"] == model, f"{told['model_flops']} model FLOPs, expected {model}"
if ranks > 1:
    assert any(row["name"].startswith("reduce ") for row in told["ring"]), "the ring did nothing"
if pipeline > 1:
    assert rows["wait for neighbours"]["calls"] > 0
    assert rows["head forward"]["calls"] == 0 and rows["head forward"]["slowest_ms"] > 0, "another rank's row"
if tensor > 1:
    assert rows["tensor sums"]["calls"] > 0 and rows["tensor sums"]["bytes"] > 0
PYTHON
}

# same RANKS TENSOR PIPELINE MICROS AGAIN OPTION…
same() {
    local shape=("${@:1:5}")
    shift 5
    same_numbers --profile --ranks "${shape[0]}" "$@"
    grep -q "^# profile of rank 0" "$work/out" || fail "$*: $(cat "$work/out")"
    grep -q "profile" "$work/bare" && fail "$*: a profile that nobody asked for"
    check "$work/seen" "${shape[@]}" || { fail "$* --profile: $(grep profile "$work/seen")"; cat "$work/out"; }
}
same 1 1 1 1 0 --stage 0
[ "$device" = host ] || { same 2 1 1 1 1 --stage 3 --checkpoint-activations full; exit $failed; }
same 2 1 1 2 0 --stage 0 --accumulate 2
same 2 1 1 1 1 --stage 3 --checkpoint-activations full
same 2 1 1 1 0 --stage 2 --offload optimizer --dtype bfloat16 --no-overlap
same 2 2 1 1 1 --tensor 2 --stage 1 --checkpoint-activations partitioned
same 2 1 2 2 0 --pipeline 2 --accumulate 2

# A checkpoint is a row of its own, beside the steps.
train --profile --checkpoint "$work/run" || fail "--checkpoint: $(cat "$work/out")"
grep -qE '^#   checkpoint +0\.3 ' "$work/out" || fail "no row of the checkpoint: $(cat "$work/out")"

[ $failed -eq 0 ] && echo "all passed"
exit $failed
