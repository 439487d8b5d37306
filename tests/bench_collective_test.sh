#!/bin/bash
# `ringzero bench`: every collective over shm and tcp at 1, 2 and 3 ranks, odd sizes, all dtypes and operations;
# JSON; launched ranks; a killed rank; exit codes and one-line errors.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"

# measured ROWS ARGUMENTS…: succeeds, with so many rows of 14 columns, none wrong, bytes as predicted.
measured() {
    local expected=$1
    shift
    if ! "$ringzero" bench "$@" >"$work/out" 2>"$work/err"; then
        fail "$*: $(cat "$work/err")"
        return
    fi
    [ "$(rows "$work/out" | wc -l)" -eq "$expected" ] ||
        fail "$*: $(rows "$work/out" | wc -l) rows, expected $expected: $(cat "$work/out")"
    rows "$work/out" | awk 'NF != 14 || $9 != "0" || $13 != "0" || $14 !~ /%$/ { print "odd: " $0; bad = 1 } END { exit bad }' ||
        fail "$*: a row is wrong"
    rows "$work/out" | awk 'seen[$1 $3 $4 $5]++ || $2 == 0 { exit 1 }' || fail "$*: a row is empty or comes twice"
    grep -q '^# Out of bounds values : 0 OK$' "$work/out" || fail "$*: no footer about wrong values"
    grep -q '^# Avg bus bandwidth    : ' "$work/out" || fail "$*: no footer about bandwidth"
    grep -q '^# Bytes sent .* measured, .* predicted OK$' "$work/out" || fail "$*: no footer about bytes"
    grep -q 'FAILED' "$work/out" && fail "$*: says FAILED"
}

quick="-n 2 -w 1"
for transport in shm tcp; do
    for ranks in 1 2 3; do
        common="--transport $transport --ranks $ranks $quick"
        measured 180 all_reduce $common -b 4003 -e 8009 -i 2003 -d all -o all
        measured 60 reduce_scatter $common -b 2003 -e 2003 -d all -o all
        measured 10 all_gather $common -b 2003 -e 2003 -d all
        measured $((10 * ranks)) broadcast $common -b 2003 -e 2003 -d all -r all
    done
done
measured 3 all_reduce --ranks 2 $quick -b 1000001 -e 3000003 -i 1000001 --seed 9
measured 3 reduce_scatter --ranks 3 $quick -b 1 -e 96 -f 2 # of 1, 2, 4, … 64 bytes: none of size 0, none twice
[ "$(rows "$work/out" | awk '{ printf "%s %s;", $1, $2 }')" = "12 1;24 2;60 5;" ] ||
    fail "sizes are $(rows "$work/out")"

# On CUDA memory, where the simulator is built: the same columns, numbers and bytes; whole groups, too.
sanitized=
grep -q '^RINGZERO_SANITIZE:[A-Z]*=..*' "$(dirname "$ringzero")/CMakeCache.txt" && sanitized=yes
if "$ringzero" bench all_reduce --ranks 1 --device cudasim -n 1 -w 0 >/dev/null 2>"$work/err"; then
    [ -n "$sanitized" ] || measured 60 all_reduce --ranks 2 --device cudasim -n 1 -w 0 -b 4003 -e 4003 -d all -o all
    measured 2 all_gather --ranks 3 --device cudasim -n 1 -w 0 -b 3 -e 300003 -i 300000 -d int8
    measured 2 broadcast --ranks 2 --device cudasim --transport tcp -n 2 -w 0 -b 64K -e 64K -r all
    grep -q 'device cudasim' "$work/out" || fail "--device cudasim: does not say so: $(cat "$work/out")"
else
    grep -q 'libringzero_cudasim.so' "$work/err" || fail "--device cudasim: $(cat "$work/err")"
fi

"$ringzero" bench all_reduce $quick -b 0 -e 4 -f 2 >"$work/out" || fail "-b 0: exit code $?"
[ "$(rows "$work/out" | awk '{ printf "%s ", $2 }')" = "0 1 " ] || fail "-b 0: rows are $(rows "$work/out")"
"$ringzero" bench all_reduce $quick -b 64 -e 64 -c 0 >"$work/out" || fail "-c 0: exit code $?"
rows "$work/out" | grep -q 'N/A' || fail "-c 0: #wrong is not N/A"
"$ringzero" bench --help | grep -q 'ringzero bench all_reduce --ranks 4' || fail "--help has no example"

# Several rings: the order of each is told when the communicator opens, and so are the tunables.
RINGZERO_CHANNELS=3 "$ringzero" bench all_reduce --ranks 3 $quick -b 1M -e 1M --log info >"$work/out" 2>"$work/err" ||
    fail "3 channels: $(cat "$work/err")"
for channel in 0 1 2; do
    grep -q "info ring: channel $channel: ring 0 1 2, next by " "$work/err" || fail "no order of channel $channel: $(cat "$work/err")"
done
grep -q 'RINGZERO_CHANNELS 3, .*RINGZERO_CHECK_ROOTS 262144' "$work/err" || fail "no tunables: $(cat "$work/err")"

# 16-bit sums in float32: exact all the same, bytes as predicted, and what they are is said.
for collective in all_reduce reduce_scatter reduce; do
    "$ringzero" bench $collective --ranks 3 $quick -b 64K -e 96K -f 2 -d half --reduce-dtype float32 -o all >"$work/out" 2>"$work/err" ||
        fail "$collective --reduce-dtype: $(cat "$work/err")"
    grep -q '^# Bytes sent .* predicted OK$' "$work/out" || fail "$collective --reduce-dtype: no footer about bytes"
    rows "$work/out" | awk 'NF != 16 || $9 != 0 || $13 != 0 || $15 != "float32" { exit 1 }' || fail "$collective: $(rows "$work/out")"
done
sums=$(rows "$work/out" | awk '{ printf "%s %s;", $4, $16 }') # of reduce: min and max round nothing, so they stay narrow
[ "$sums" = "sum 131072;prod 131072;min 65536;max 65536;avg 131072;mulsum 131072;" ] || fail "wide sums: found $sums"

# JSON: an object a line, with stable keys.
measured 2 all_gather --ranks 2 $quick -b 8K -e 16K -f 2 --json "$work/json"
half='\{"time":[0-9.e+-]+,"alg_bw":[0-9.e+-]+,"bus_bw":[0-9.e+-]+,"nwrong":0\}'
keys='^\{"size":8192,"count":1024,"type":"float","redop":"none","root":-1,'
keys+='"out_of_place":'$half',"in_place":'$half',"limit_bw":[0-9.e+-]+,"memory":"plain"\}$'
[ "$(wc -l <"$work/json")" -eq 2 ] || fail "JSON has $(wc -l <"$work/json") lines, expected 2"
head -1 "$work/json" | grep -qE "$keys" || fail "JSON is $(head -1 "$work/json")"
measured 1 all_gather --ranks 2 $quick --transport tcp -b 8K -e 8K --json "$work/json"
grep -qE ',"limit_bw":[0-9.e+-]+,"limit_cached_bw":[0-9.e+-]+,"memory"' "$work/json" || fail "JSON over TCP is $(cat "$work/json")"
grep -qE '^# Limit: two-way TCP stream of 256 KiB, .* GB/s a rank \(of 256 KiB that stay cached: [0-9.]+\)' "$work/out" ||
    fail "no limits of a stream: $(cat "$work/out")"
grep -q ', 8 slots of 512 KiB an edge' "$work/out" || fail "slots of messages are not twice as large: $(grep '^# Ring' "$work/out")"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$work/json" || fail "JSON does not parse"
fi

# Ranks that a launcher started: torchrun's variables, on a port that is free now.
port=$((20000 + RANDOM % 10000))
launched=(env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port)
"${launched[@]}" RANK=1 "$ringzero" bench broadcast $quick -b 64 -e 64 >"$work/one" 2>&1 &
other=$!
"${launched[@]}" RANK=0 "$ringzero" bench broadcast --ranks 2 $quick -b 64 -e 64 >"$work/zero" 2>&1 ||
    fail "rank 0: $(cat "$work/zero")"
wait $other || fail "rank 1: $(cat "$work/one")"
[ "$(rows "$work/zero" | wc -l)" -eq 1 ] || fail "rank 0 printed: $(cat "$work/zero")"
[ ! -s "$work/one" ] || fail "rank 1 printed: $(cat "$work/one")"

# A killed rank: the others say whom they miss, and the job ends with its signal.
"$ringzero" bench all_reduce --ranks 3 -b 4M -e 4M -n 100000 >"$work/out" 2>"$work/err" &
job=$!
for _ in $(seq 100); do
    grep -q 'busbw' "$work/out" && break
    sleep 0.1
done
victim=$(sed -n 's/^# *Rank  2 Pid *\([0-9]*\).*/\1/p' "$work/out")
if [ -n "$victim" ]; then
    kill -KILL "$victim"
    wait $job
    code=$?
    [ $code -eq 137 ] || fail "a killed rank: exit code $code, expected 137"
    grep -q '^ringzero bench: rank [01]/3: .*rank 2 ' "$work/err" || fail "a killed rank: found $(cat "$work/err")"
else
    fail "no rank 2 was introduced within 10 s: $(cat "$work/out" "$work/err")"
    kill -TERM $job
fi

# The same, and then another, with --on-death shrink: one log line each, the rows go on with fewer ranks, right ones, and the exit code is 0.
iterations=1500 # seconds; a sanitizer makes minutes of them
[ -z "$sanitized" ] || iterations=100
for memory in plain own; do
    "$ringzero" bench all_reduce --ranks 4 --memory $memory -b 2M -e 4M -f 2 -n $iterations --on-death shrink --json "$work/json" >"$work/out" 2>"$work/err" &
    job=$!
    for rank in 2 3; do
        for _ in $(seq 100); do
            [ "$(rows "$work/out" | wc -l)" -ge $((rank - 2)) ] && grep -q busbw "$work/out" && break
            sleep 0.1
        done
        sleep 0.5
        kill -KILL "$(sed -n "s/^# *Rank  $rank Pid *\([0-9]*\).*/\1/p" "$work/out")" || fail "rank $rank was not there to be killed"
    done
    wait $job
    code=$?
    [ $code -eq 0 ] || fail "--on-death shrink: exit code $code, expected 0: $(cat "$work/err")"
    [ "$(rows "$work/out" | wc -l)" -eq 2 ] || fail "--on-death shrink: rows are $(cat "$work/out")"
    grep -q '^# 3 ranks from here on' "$work/out" && grep -q '^# 2 ranks from here on' "$work/out" || fail "no losses in $(cat "$work/out")"
    grep -q '^# Bytes sent .* predicted OK$' "$work/out" || fail "--on-death shrink: no footer about bytes: $(cat "$work/out")"
    for words in 'rank 2 was killed by signal 9 (Killed): the others go on' 'rank 2 of 4 is out; those left, 3, go on' \
        'rank 3 was killed by signal 9 (Killed): the others go on' 'rank 2 of 3 is out; those left, 2, go on'; do
        [ "$(grep -cF "$words" "$work/err")" -eq 1 ] || fail "not one line \"$words\" in $(cat "$work/err")"
    done
    [ "$(wc -l <"$work/err")" -eq 4 ] || fail "--on-death shrink said more than 4 lines: $(cat "$work/err")"
done

# Rank 0 holds the others together: without it they end, within seconds, with its signal.
"$ringzero" bench all_reduce --ranks 3 -b 4M -e 4M -n 100000 --on-death shrink >"$work/out" 2>"$work/err" &
job=$!
for _ in $(seq 100); do
    grep -q 'busbw' "$work/out" && break
    sleep 0.1
done
kill -KILL "$(sed -n 's/^# *Rank  0 Pid *\([0-9]*\).*/\1/p' "$work/out")"
wait $job
code=$?
[ $code -eq 137 ] || fail "rank 0 killed: exit code $code, expected 137"
grep -q '^ringzero bench: rank [12]/3: .*cannot go on without rank 0' "$work/err" || fail "rank 0 killed: found $(cat "$work/err")"

# Operations that fail: 1, a line per rank.
"$ringzero" bench all_reduce --ranks 2 $quick -b 8 -e 8 --json /dev/full >"$work/out" 2>"$work/err"
code=$?
[ $code -eq 1 ] || fail "a full disk: exit code $code, expected 1"
grep -q '^ringzero bench: rank 0/2: --json /dev/full' "$work/err" || fail "a full disk: said $(cat "$work/err")"
"$ringzero" bench all_reduce -b 1 -e 5 -f 7 >"$work/out" 2>"$work/err" && fail "sizes without an element: exit code 0"

refused 'no collective given, expected all_reduce, ' bench
refused 'see `ringzero bench --help`' bench
refused 'collective is "barrier"' bench barrier
refused '-b is 67108864 bytes, expected at most -e, which is 1048576' bench all_reduce -b 64M -e 1M
refused '-b is "3X", expected bytes' bench all_reduce -b 3X
refused '-b is "-1", expected bytes' bench all_reduce -b -1
refused '-e is 8 bytes, expected at least 16' bench all_gather --ranks 4 -b 1 -e 8
refused '-n is "0"' bench all_reduce -n 0
refused '-d is "fp13"' bench all_reduce -d fp13
refused '-o is "minus"' bench all_reduce -o minus
refused '--on-death is "pray", expected end or shrink' bench all_reduce --on-death pray
refused '--reduce-dtype is "float64", expected own or float32' bench all_reduce --reduce-dtype float64
refused '-r is 2, expected a rank below 2' bench broadcast --ranks 2 -r 2
refused 'option "-Z" is unknown' bench all_reduce -IZ 3
refused 'option "-n" lacks its value, expected -n N' bench all_reduce -In
refused '-r is given, expected none: all_reduce has no root' bench all_reduce -r 0
refused '-o is given, expected none: all_gather adds nothing up' bench all_gather -o sum
refused '--reduce-dtype is given, expected none: broadcast adds nothing up' bench broadcast --reduce-dtype own
refused '--json' bench all_reduce --json "$work/none/file"
export WORLD_SIZE=2 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29999
refused '--ranks is 3 but WORLD_SIZE is 2' bench all_reduce --ranks 3
unset MASTER_PORT
refused 'MASTER_PORT' bench all_reduce

exit $failed
