#!/bin/bash
# `ringzero train --trace`: all ranks on one clock: uses of units as the model has them, operations in them, the ring's work
# unit by unit, its collectives; the losses are the bits of a run that nobody looks at. Counts and nesting judge.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"
. "$(dirname "$0")/harness/small_run.sh"

# check RANKS PIPELINE MICROS FIRST STEPS GATHERS: blocks gathered by the ring in a step
check() {
    python3 - "$work/trace" "$work/trace.svg" "$@" <<'PYTHON'
import json, re, sys
import xml.etree.ElementTree
ranks, pipeline, micros, first, steps, gathers = map(int, sys.argv[3:])
told = json.load(open(sys.argv[1]))["traceEvents"]
picture = xml.etree.ElementTree.parse(sys.argv[2]).getroot()
lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in told if e["name"] == "thread_name"}
spans = [e for e in told if e["ph"] == "X"]
drawn = sum(1 for e in picture.iter("{http://www.w3.org/2000/svg}rect") if len(e))
assert drawn == len(spans), f"{drawn} drawn of {len(spans)}"
for rank in range(ranks):
    mine = [e for e in spans if e["pid"] == rank]
    def on(lane): return [e for e in mine if lanes[rank, e["tid"]] == lane]
    def named(lane, pattern): return [e for e in on(lane) if re.fullmatch(pattern, e["name"])]
    for tid in {e["tid"] for e in mine}:  # of a lane, one inside another or apart
        open_ends = []
        for e in sorted((e for e in mine if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= e["ts"] + 0.002: open_ends.pop()
            end = e["ts"] + e["dur"]
            assert e["ts"] >= 0 and e["dur"] >= 0
            assert not open_ends or end <= open_ends[-1] + 0.002, f"{e} ends after what is around it"
            open_ends.append(end)
    found = [e["name"] for e in named("computes", "step .*")]
    assert found == [f"step {first + i}" for i in range(steps)], found
    blocks = 2 // pipeline
    for way in "forward", "backward":
        uses = named("computes", f"block . {way}")
        assert len(uses) == blocks * micros * steps, f"rank {rank}: {len(uses)} uses of blocks {way}"
        inside = [e for use in uses for e in named("computes", f"fc {way}.*") if use["ts"] <= e["ts"] + 0.001
                  and e["ts"] + e["dur"] <= use["ts"] + use["dur"] + 0.002]
        assert len(inside) >= len(uses), f"rank {rank}: {len(inside)} of fc {way} in uses of blocks"
    assert len(named("ring", "gather block .")) == gathers * blocks * steps, f"rank {rank}: gathers of blocks"
    if ranks == 1: continue
    collectives = [e for e in mine if re.match("(all_reduce|reduce_scatter|all_gather|send|recv) [0-9]+$", e["name"])]
    assert collectives and all(lanes[rank, e["tid"]] not in ("computes", "ring") for e in collectives)
    if pipeline > 1: assert any(lanes[rank, e["tid"]].startswith("onward") for e in mine), lanes
if pipeline == 1: assert any(e["name"].startswith("reduce block") for e in spans)
PYTHON
}

# traced "RANKS PIPELINE MICROS FIRST STEPS GATHERS" OPTION…
traced() {
    local shape=($1)
    shift
    rm -f "$work/trace" "$work/trace.svg"
    same_numbers "--trace $work/trace $steps" --ranks "${shape[0]}" "$@"
    grep -q "^# trace: [0-9]* spans in $work/trace and" "$work/out" || fail "$*: $(cat "$work/out")"
    check "${shape[@]}" || fail "$* --trace"
}
steps=""
traced "1 1 1 2 2 0" --stage 0
traced "2 1 1 2 2 2" --stage 3 --checkpoint-activations full
[ "$device" = host ] || exit $failed
traced "2 1 2 2 2 1" --stage 1 --accumulate 2 --transport tcp
steps="--trace-steps 3:9"
traced "2 1 1 3 2 1" --tensor 2 --stage 2 --checkpoint-activations partitioned
steps="--trace-steps 1"
traced "2 2 2 1 1 0" --pipeline 2 --accumulate 2

train --trace "$work/none" --trace-steps 7 || fail "$(cat "$work/out")"
grep -q "none written: this run ended before its step 7" "$work/out" && [ ! -e "$work/none" ] || fail "$(cat "$work/out")"
train --trace "$work/absent/file"
[ $? -eq 1 ] && grep -q "absent/file cannot be written: No such file" "$work/out" || fail "$(cat "$work/out")"
refused "expected --trace FILE" train --data "$work/text" $small --trace-steps 2
refused --trace-steps train --data "$work/text" $small --trace "$work/none" --trace-steps 3:2

[ $failed -eq 0 ] && echo "all passed"
exit $failed
