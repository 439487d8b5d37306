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
another way    over shm such a call goes by hops: --bytes 4012 draws that
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

# ---- the way of a size: by memory, by messages, by one rank, along a chain, by windows ----
unset ${!RINGZERO_@} # but for the program's own
cat >"$work/expected" <<'END'
all_reduce of 8 bytes (2 float32), 4 ranks of one host over shm: hops
everyone tells everyone at once: what a few bytes cost is the turns they take

turn │ rank 0                 │ rank 1                 │ rank 2                 │ rank 3
─────┼────────────────────────┼────────────────────────┼────────────────────────┼────────────────────────
   0 │ ►1,2,3 in0             │ ►2,3,0 in1             │ ►3,0,1 in2             │ ►0,1,2 in3
     │ ◄1 in1  ◄2 in2  ◄3 in3 │ ◄0 in0  ◄2 in2  ◄3 in3 │ ◄0 in0  ◄1 in1  ◄3 in3 │ ◄0 in0  ◄1 in1  ◄2 in2
     │ adds all               │ adds all               │ adds all               │ adds all

►1 sends to rank 1   ◄1 receives from rank 1   adds everyone's inputs, in the order of large ones
in2: the input of rank 2
all: the whole array, complete

turns          1; round the ring 7 steps
messages       3 by every rank, 12 in all; round the ring 24
sent bytes     24 by every rank; round the ring 8 to 16 by a rank
largest        8 bytes, by lines: the flag is in the data's own cache lines
sizes          hops by lines in 1 turn to 1064, hops by lines in 2 turns to 4256, hops in 2 turns to 65536, ring to 1048560, then windows in 2 turns
END
"$ringzero" show all_reduce --ranks 4 -b 8 --json "$work/json" >"$work/out" || fail "show -b 8: exit code $?"
diff "$work/expected" "$work/out" || fail "the way of 8 bytes differs from the expected one"
[ "$(wc -l <"$work/json")" -eq 13 ] || fail "JSON has $(wc -l <"$work/json") lines, expected 12 messages + 1"
grep -qxF '{"turn":0,"from":2,"to":1,"bytes":8,"by_lines":true,"holds":["in2"]}' "$work/json" || fail "JSON lacks a message"
grep -qF '"way":"hops","turns":1,"sent_messages":[3,3,3,3],"sent_bytes":[24,24,24,24]}' "$work/json" || fail "JSON lacks the sums"
tcp="--ranks 4 --transport tcp"
holds '   1 │ ►2 0c2 1c2 │ ►3 1c3 0c3 │ ►0 2c0 3c0 │ ►1 3c1 2c1' show reduce_scatter $tcp --cores 4 -b 64K
holds 'messages       2 by every rank, 8 in all; round the ring 12' show reduce_scatter $tcp --cores 4 -b 64K
holds '   1 │ ►3,2,1 all             │' show all_reduce $tcp --cores 2 -b 8
holds 'sent bytes     8 to 24 by a rank; round the ring 8 to 16 by a rank' show all_reduce $tcp --cores 2 -b 8
holds 'sizes          star in 2 turns to 65536, then ring' show all_reduce $tcp --cores 2 -b 8
holds '   2 │        │        │ ►3 all │' show broadcast $tcp --cores 1 -b 8
holds '   1 │ ►1,2 c0        │ ►2,0 c1        │ ►0,1 c2' show all_reduce --ranks 3 -b 64M --memory own
holds "in the sender's buffer, of ring_alloc()" show all_reduce --ranks 3 -b 64M --memory own
holds 'turn 2    rank 5    ►1 c4 c5 c6 c7' show all_gather --ranks 8 --hosts 8 -b 1K
holds 'over shm, and tcp between hosts: two levels' show all_reduce --ranks 4 --hosts 2 -b 1M
holds '   0 │ ►1,2,3 │ ►2,3,0 │ ►3,0,1 │ ►0,1,2' show barrier -b 0
holds '7 = 2n − 1' show all_reduce -b 256K
RINGZERO_EXCHANGE_BYTES=0 holds 'one host over shm: ring' show all_reduce -b 8
run show all_reduce --ranks 16 --transport tcp --cores 1 --bytes 8..1G --json "$work/json"
[ "$(rows "$work/out" | sed 's/  */ /g')" = " 8 65536 star 2 15 983040 15.00
 65540 131072 rounds 8 8 385024 2.94
 131076 262144 hops 2 30 491520 1.88
 262148 1073741824 ring 31 30 2013265920 1.88" ] || fail "the ways of sizes: $(cat "$work/out")"
grep -qxF '{"from":65540,"to":131072,"way":"rounds","by_lines":false,"turns":8,"messages":8,"sent_bytes":385024}' "$work/json" ||
    fail "JSON of sizes: $(cat "$work/json")"
refused '--bytes is 15, expected at least 16: one float32 of every rank' show all_gather -b 15
refused '--bytes is 8, expected 0: a barrier carries nothing' show barrier -b 8
refused '--memory and --cores are for --bytes' show all_reduce --cores 2
refused '--count and --bytes are both given' show all_reduce --count 2 -b 8
RINGZERO_EXCHANGE_BYTES=measure refused 'expected a number' show all_reduce -b 8

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
