#!/bin/bash
# What is counted has the right ending: runs of one rank, one step, one token, one of everything, in which no word that
# follows a 1 is a plural.
# ctest: timeout=60
set -u
. "$(dirname "$0")/harness/program.sh"
counted='ranks|steps|tokens|stages|heads|layers|times|groups|chunks|events|spans|shards|threads|nodes|bytes|micro-batches|questions|sequences|channels|hosts|files|elements|positions'

# one WORDS: the last run's output holds the words with a 1, and none of them wrong.
one() {
    grep -hqE -- "$1" "$work/out" "$work/err" || fail "expected \"$1\" in: $(cat "$work/out" "$work/err")"
    ! grep -hE "(^|[^0-9.,/x=])1 (data |whole |wrong |more )?($counted)\b" "$work/out" "$work/err" || fail "the line above counts 1 of something as several"
}

# refused_one WORDS ARGUMENTS…: refused, on every rank, and counted as well.
refused_one() {
    local words=$1
    shift
    "$ringzero" "$@" >"$work/out" 2>"$work/err" && fail "$*: succeeded"
    one "$words"
}

yes 'It was one of those days.' | head -c 8192 >"$work/text"
small="--data $work/text --layers 1 --heads 1 --channels 16 --positions 16 --warmup 1"
run train --ranks 1 $small --batch 1 --seq 1 --steps 2 --sample 1 --validate-batches 1 --trace "$work/trace" \
    --report "$work/report.html" --checkpoint "$work/checkpoint"
one '1 token a step' && one 'median of 1 step:' && one 'sample: 1 token after' && one '^# ranks  1 by'
cp "$work/report.html" "$work/out"
one '1 layer, 1 head' && one '1 stage of a pipeline' && one '1 token each' && one 'predicted on 1 rank\.'
cp "$work/trace.svg" "$work/out"
one 'stage 0, 1 rank by'
run train --ranks 1 $small --batch 1 --steps 1
one '1 step, Ψ'
run train --ranks 2 $small --layers 2 --steps 1 --batch 1 --stage 3 --shard-group 1 --pipeline 1
one '2 groups of 1 rank$'
run train --ranks 2 $small --layers 2 --steps 1 --batch 1 --pipeline 2
one '1 micro-batch a step'
run train --ranks 2 $small --heads 2 --steps 1 --batch 1 --tensor 2
one 'every tensor, 1 time:'
run sample --checkpoint "$work/checkpoint" --prompt I --tokens 1
one 'prompt 1 token read' && one 'text   1 token in'
run bench all_reduce --ranks 1 -n 1 -w 1 -b 4 -e 4 --trace "$work/trace"
one 'Trace of the last row' && cp "$work/trace.svg" "$work/out"
one 'on 1 rank over'
run show all_reduce --ranks 2 --dtype half --reduce-dtype float32
one '1 chunk of 4 bytes'
run show all_reduce --ranks 2..4 --simulate alpha=1us,beta=1GB/s,nodes=1
one 'between 1 node;'

refused_one 'divisor of the 1 rank$' train --ranks 1 $small --shard-group 2
refused_one 'divide the 1 rank$' train --ranks 1 $small --tensor 2 --heads 2
refused_one 'expected 1 to 1 stage:' train --ranks 2 $small --pipeline 2
refused_one '1 step but have no directory' train --ranks 1 $small --checkpoint-every 1
refused_one 'e is 1 byte,' bench all_reduce --ranks 1 -b 1 -e 1
exit $failed
