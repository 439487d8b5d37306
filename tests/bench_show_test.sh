#!/bin/bash
# `ringzero show`: the table of 4 ranks is what it should be, other sizes take their forms, errors are one line and 2.
# ctest: timeout=30
set -u
. "$(dirname "$0")/harness/program.sh"

# holds WORDS ARGUMENTS…: succeeds, and one line of the output holds the words.
holds() {
    local words=$1
    shift
    "$ringzero" "$@" >"$work/out" 2>"$work/err" || fail "$*: exit code $?: $(cat "$work/err")"
    grep -qF -- "$words" "$work/out" || fail "$*: no line holds \"$words\""
}

cat >"$work/expected" <<'END'
all_reduce, 4 ranks, ring 0 ► 1 ► 2 ► 3 ► 0: 4 chunks, chunk c belongs to rank c

step │ rank 0             │ rank 1             │ rank 2             │ rank 3
─────┼────────────────────┼────────────────────┼────────────────────┼────────────────────
   0 │ c3    own       ►1 │ c0    own       ►2 │ c1    own       ►3 │ c2    own       ►0
   1 │ c2 ◄3 +own      ►1 │ c3 ◄0 +own      ►2 │ c0 ◄1 +own      ►3 │ c1 ◄2 +own      ►0
   2 │ c1 ◄3 +own      ►1 │ c2 ◄0 +own      ►2 │ c3 ◄1 +own      ►3 │ c0 ◄2 +own      ►0
   3 │ c0 ◄3 +own keep ►1 │ c1 ◄0 +own keep ►2 │ c2 ◄1 +own keep ►3 │ c3 ◄2 +own keep ►0
   4 │ c3 ◄3      keep ►1 │ c0 ◄0      keep ►2 │ c1 ◄1      keep ►3 │ c2 ◄2      keep ►0
   5 │ c2 ◄3      keep ►1 │ c3 ◄0      keep ►2 │ c0 ◄1      keep ►3 │ c1 ◄2      keep ►0
   6 │ c1 ◄3      keep    │ c2 ◄0      keep    │ c3 ◄1      keep    │ c0 ◄2      keep

c chunk   ◄ receives it from   own takes its own input   +own adds its own input
keep stores it in its output   ► sends it to

steps          7 = 2n − 1
sent per rank  6 chunks = 2(n−1) chunks of 1/n of the buffer: 2(n−1)/n of its bytes
sent bytes     --count 1003, float32:
               rank 0    6016
               rank 1    6016
               rank 2    6020
               rank 3    6020
END
"$ringzero" show all_reduce --ranks 4 --count 1003 --json "$work/json" >"$work/out" ||
    fail "show all_reduce: exit code $?"
diff "$work/expected" "$work/out" || fail "the table of 4 ranks differs from the expected one"

[ "$(wc -l <"$work/json")" -eq 29 ] || fail "JSON has $(wc -l <"$work/json") lines, expected 7 steps x 4 ranks + 1"
grep -qxF '{"step":3,"rank":0,"primitive":"recv_reduce_copy_send","chunk":0,"from":3,"to":1}' "$work/json" ||
    fail "JSON lacks step 3 of rank 0"
grep -qF '"sent_chunks":[6,6,6,6],"sent_bytes":[6016,6016,6020,6020]' "$work/json" ||
    fail "JSON lacks the sums"

holds '   0 │ ◄3     keep ►1 │ ◄0     keep    │    own keep ►3 │ ◄2     keep ►0' show broadcast --ranks 4 --root 2
holds '   0 │ own keep' show all_gather --ranks 1
holds '   7 ◄0+=► ◄1+=► ◄2+=► ◄3+=► ◄4+=► ◄5+=► ◄6+=► ◄7+=►' show all_reduce --ranks 8
holds '   3 │ c0 ◄1 +own +◄2 keep ►2 │ c1 ◄0 +own +◄3 keep ►3 │' show all_reduce --ranks 4 --hosts 2
holds '   4 │ c0    kept          ►1 │ c1    kept          ►0 │' show all_reduce --ranks 4 --hosts 2
holds '   7 ◄0+⇐=⇒ ◄1+⇐=⇒ ◄2+⇐=⇒ ◄3+⇐=⇒│◄4+⇐=⇒' show all_reduce --ranks 8 --hosts 2
holds 'out of a host  8 chunks by its 4 ranks; round one ring of all ranks 14' show all_reduce --ranks 8 --hosts 2
holds 'steps          11 = n + H − 1' show all_gather --ranks 8 --hosts 4
holds 'sent bytes     --count 800, float32: 5600 by every rank' show all_reduce --ranks 8 --hosts 4 --count 800
holds 'step 19   rank 19   c19 ◄18 +own +◄14 keep' show reduce_scatter --ranks 20 --hosts 4
run show all_reduce --ranks 4 --hosts 2 --json "$work/levels"
grep -q '"step":3,"rank":1,.*"joins":3' "$work/levels" || fail "no joins in $(sed -n 14p "$work/levels")"
grep -q '"border_chunks":\[2,2,2,2\]' "$work/levels" || fail "no border_chunks in $(tail -1 "$work/levels")"
holds 'two levels' show all_reduce --ranks 8 --bytes 1M --simulate alpha=5us,beta=1GB/s,nodes=2
holds 'step 16   rank 16   c0  ◄15     keep' show all_gather --ranks 17
holds 'sent bytes     --count 10, bfloat16: 60 by every rank' show reduce_scatter --ranks 4 --count 10 --dtype bf16
holds 'sent bytes     --count 10, bfloat16: 120 by every rank' show reduce_scatter --ranks 4 --count 10 --dtype bf16 --reduce-dtype float32
holds '3 chunks of 4 bytes an element, 3 of 2: 1.5 times the bytes' show all_reduce --ranks 4 --dtype half --reduce-dtype float32
holds 'sent bytes     --count 1000, float16: 4500 by every rank' show all_reduce --ranks 4 --count 1000 --dtype half --reduce-dtype float32
holds "1 chunk of 4 bytes an element, 0 of 2: 2 times the bytes" show reduce --ranks 4 --root 2 --dtype half --reduce-dtype float32
holds '2(n−1) empty messages' show barrier
holds '   0 │ ◄3 +own keep    │    own       ►2 │ ◄1 +own      ►3 │ ◄2 +own      ►0' show reduce
holds '   1 │ c1    own      ►1 │                   │                   │' show scatter
holds '   3 │ c3 ◄3     keep    │                   │                   │' show gather
holds '   2 │ c3 ◄3     keep    │ c0 ◄0     keep    │ c1 ◄1     keep    │ c2 ◄2     keep' show all_to_all
holds '   0 │    own      ►1 │ ◄0     keep    │                │' show send
holds '   0 │ ◄2     keep    │                │    own      ►0 │' show recv --root 2
holds 'step 4    rank 1    c0    own      ►0' show scatter --ranks 5 --root 1
holds 'Usage: ringzero show' show --help
holds 'Usage: ringzero PROGRAM' --help
holds 'ringzero ' --version

refused 'no collective given' show
refused 'collective is "all_reducee"' show all_reducee
refused '--ranks is "0", expected a whole number from 1' show all_reduce --ranks 0
refused '--ranks is "4x"' show all_reduce --ranks 4x
refused '--hosts is 3, expected a number by which --ranks 8 divides' show all_reduce --ranks 8 --hosts 3
refused 'at least two ranks on each' show all_reduce --ranks 8 --hosts 8
refused 'expected a collective that has two levels' show broadcast --ranks 8 --hosts 2
refused 'expected nodes=2 among its links' show all_reduce --ranks 8 --hosts 2 --simulate alpha=1us,beta=1GB/s
refused '--root is 4, expected a rank below' show broadcast --ranks 4 --root 4
refused 'all_gather has no root' show all_gather --root 1
refused '--root is 0, expected another rank' show recv --root 0
refused '--dtype is "fp13", expected one of ' show all_reduce --dtype fp13
refused '--reduce-dtype is "bf8", expected own or float32' show all_reduce --reduce-dtype bf8
refused '--device is "toaster", expected' show all_reduce --device toaster
refused '--transport is "pigeon", expected one of auto, shm' show all_reduce --transport pigeon
refused 'option "--no-such"' show all_reduce --no-such
refused 'option "-q"' show -q all_reduce
refused 'option "--ranks" lacks its value, expected --ranks N' show all_reduce --ranks
refused 'option "--rnaks" is unknown, the nearest is --ranks: see' show all_reduce --rnaks 4
refused 'option "--zzzzzzzz" is unknown, and none is like it' show all_reduce --zzzzzzzz=1
refused 'option "--r" is ambiguous, expected one of --root, --reduce-dtype, --ranks' show all_reduce --r 3
refused 'option "--help=me" has a value, expected --help alone' show --help=me
refused 'option "-r" lacks its value, expected -r R' show broadcast -r
refused 'option "-s" of "-simulate" is unknown, the nearest is --simulate' show all_reduce -simulate alpha=1us
refused 'broadcast adds nothing up' show broadcast --reduce-dtype float32
refused 'all_gather has no root' show all_gather --root 0
refused 'cannot be written' show all_reduce --json "$work/none/file"
refused 'program "shwo" is unknown, expected one of' shwo
refused 'no program given'

exit $failed
