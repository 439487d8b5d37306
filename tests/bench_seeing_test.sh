#!/bin/bash
# What `ringzero bench` and `show` let people see: every collective measured and right, -I and -z, the naive all-reduce, pictures
# with and without gnuplot, traces whose steps are those of the plan, and plans run in virtual time.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"

quick="-n 3 -w 1"

# ---- every collective, small and large, roots and transports; right (the program looks) and bytes as predicted ----
for collective in all_reduce reduce_scatter all_gather broadcast reduce scatter gather all_to_all send_recv; do
    for ranks in 1 3; do
        expected=2 roots=
        case $collective in broadcast | reduce | scatter | gather) expected=$((2 * ranks)) roots="-r all" ;; esac
        run bench $collective --ranks $ranks $quick -b 1003 -e 400003 -i 399000 $roots
        [ "$(rows "$work/out" | awk 'NF != 14 || $9 != 0 || ($13 != 0 && $13 != "N/A")' | wc -l)" -eq 0 ] ||
            fail "$collective, $ranks ranks: $(cat "$work/out")"
        grep -q '^# Bytes sent .* FAILED' "$work/out" && fail "$collective, $ranks ranks: $(cat "$work/out")"
        [ "$(rows "$work/out" | wc -l)" -eq $expected ] || fail "$collective, $ranks ranks: expected $expected rows: $(cat "$work/out")"
    done
done
run bench all_to_all --ranks 3 --transport tcp $quick -b 300003 -e 300003
run bench gather --ranks 3 --transport tcp $quick -b 300003 -e 300003 -r 2
run bench all_to_all --ranks 2 $quick -b 64K -e 64K --json "$work/json"
grep -q '"in_place":null' "$work/json" || fail "JSON of all_to_all has an in-place half: $(cat "$work/json")"

# ---- single operations, and the textbooks' all-reduce ----
run bench all_reduce --ranks 2 $quick -b 64K -e 64K -I -z 1 --json "$work/json"
rows "$work/out" | awk 'NF != 20 || $15 > $16 || $18 > $19 { exit 1 }' || fail "-I: $(cat "$work/out")"
number='[0-9.e+-]+'
grep -qE '"nwrong":0,"p50_us":'$number',"p99_us":'$number',"cv":'$number'\},"in_place"' "$work/json" || fail "-I: JSON is $(cat "$work/json")"
run bench all_reduce --ranks 3 --algo naive $quick -b 300 -e 600300 -i 600000 -d bf16 -o all
rows "$work/out" | awk '$9 != 0 || $13 != 0 { exit 1 }' || fail "--algo naive: $(cat "$work/out")"
grep -q 'as Reduce + Broadcast' "$work/out" || fail "--algo naive: says nothing: $(cat "$work/out")"

# ---- groups: the same work in fewer calls; -m 3 sends three times the bytes of -m 1 on the ring ----
for collective in all_reduce all_gather broadcast all_to_all send_recv; do
    for transport in shm tcp; do
        run bench $collective --ranks 3 --transport $transport $quick -m 4 -b 1003 -e 400003 -i 399000
        [ "$(rows "$work/out" | awk 'NF == 14 && $9 == 0 && ($13 == 0 || $13 == "N/A")' | wc -l)" -eq 2 ] ||
            fail "-m 4, $collective over $transport: $(cat "$work/out")"
    done
done
run bench reduce_scatter --ranks 2 $quick --agg_iters 3 -b 1K -e 1K -d all -o all --json "$work/json"
grep -q '"root":-1,"group":3,"out_of_place"' "$work/json" || fail "-m 3: JSON is $(head -1 "$work/json")"
for group in 1 3; do
    RINGZERO_EXCHANGE_BYTES=0 run bench reduce --ranks 2 -n 2 -w 1 -m $group -b 64K -e 64K
    sent[group]=$(sed -n 's/^# Bytes sent.* \([1-9][0-9]*\) measured.*/\1/p' "$work/out")
done
[ "${sent[3]}" -eq $((3 * sent[1])) ] || fail "-m 3 sent ${sent[3]} bytes, -m 1 ${sent[1]}"
refused '-m is "0", expected' bench all_reduce -m 0
refused '-m is 2 with --algo naive' bench all_reduce -m 2 --algo naive

# ---- pictures ----
# Files beside FILE have names that are longer: one that has no room for them is refused before anything runs.
printf -v name '%0252d' 0
folders=$(printf '%0250d/%.0s' {1..17} | head -c 4080)
for file in "$work/$name" "$folders/$name"; do
    for option in --plot --trace; do
        refused 'files with an ending more stand beside it' bench all_reduce --ranks 2 $option "$file"
        refused 'files with an ending more stand beside it' train --data README.md $option "$file"
    done
    refused 'files with an ending more stand beside it' show all_reduce --ranks 2..8 --simulate alpha=1us,beta=1GB/s --plot "$file"
done
run bench all_reduce --ranks 2 $quick -b 1K -e 1K --trace "$work/${name%?}"
[ -s "$work/${name%?}.svg" ] || fail "--trace: no picture beside a name of 251 letters"
run bench all_reduce --ranks 2 $quick -b 1K -e 64K -f 4 --plot "$work/busbw.svg"
[ "$(awk 'NF == 4' "$work/busbw.dat" | wc -l)" -eq 4 ] || fail "--plot: the data are $(cat "$work/busbw.dat")"
if command -v gnuplot >/dev/null; then
    grep -q '<svg' "$work/busbw.svg" || fail "--plot: no picture"
    grep -q 'memory copy' "$work/busbw.svg" || fail "--plot: no line for the limit"
fi
mkdir "$work/empty"
PATH=$work/empty "$ringzero" show all_reduce --ranks 2..8 --simulate alpha=5us,beta=50GB/s --plot "$work/none.svg" >"$work/out" 2>"$work/err" ||
    fail "--plot without gnuplot: exit code $?"
[ "$(wc -l <"$work/err")" -eq 1 ] && grep -qF "the data are in $work/none.dat" "$work/err" || fail "without gnuplot: said $(cat "$work/err")"
[ "$(wc -l <"$work/none.dat")" -eq 3 ] && [ ! -e "$work/none.svg" ] || fail "without gnuplot: the data are not there"

# ---- slices that are messages: a chunk of 256 KiB is cut where four ranks pass it round ----
for case in '3 768K 262144' '4 1M 65536'; do
    read -r ranks size bytes <<<"$case"
    run bench all_reduce --ranks "$ranks" --transport tcp $quick -b "$size" -e "$size" --trace "$work/trace.json"
    found=$(grep -o '"bytes":[0-9]*' "$work/trace.json" | sort -u | paste -sd' ')
    [ "$found" = "\"bytes\":$bytes" ] || fail "$ranks ranks over TCP, chunks of 256 KiB: slices are $found, expected $bytes"
done

# ---- traces: 4 ranks run 7 steps on each slice of 64 KiB chunks ----
run bench all_reduce --ranks 4 $quick -b 256K -e 256K --trace "$work/trace.json"
parses "$work/trace.json"
slices=$(grep -c '"pid":0,.*"cat":"step".*"step":0,' "$work/trace.json")
[ "$slices" -gt 1 ] || fail "--trace: $slices slices"
for rank in 0 1 2 3; do
    [ "$(grep -c '"ph":"X","pid":'$rank',.*"cat":"step"' "$work/trace.json")" -eq $((7 * slices)) ] ||
        fail "--trace: rank $rank has not 7 steps of $slices slices"
done
[ "$(grep -c '"ph":"s"' "$work/trace.json")" -eq $((24 * slices)) ] || fail "--trace: not every send leads to a receive"
[ "$(grep -c '"ph":"f"' "$work/trace.json")" -eq $((24 * slices)) ] || fail "--trace: an arrow has no end"
grep -q '<svg' "$work/trace.json.svg" && grep -q '>rank 3<' "$work/trace.json.svg" || fail "--trace: no picture"
# A few bytes: no ring, but each rank sends to each other and adds.
run bench all_reduce --ranks 3 $quick -b 8 -e 8 --trace "$work/small.json"
parses "$work/small.json"
[ "$(grep -c '"cat":"step","name":"send ' "$work/small.json")" -eq 6 ] || fail "--trace: an exchange of 3 ranks sends 6 parts: $(cat "$work/small.json")"
[ "$(grep -c '"ph":"f"' "$work/small.json")" -eq 6 ] || fail "--trace: not every part leads to a receive"
[ "$(grep -c '"name":"recv_reduce_copy ' "$work/small.json")" -eq 3 ] || fail "--trace: not 3 sums"
# In memory of ring_alloc(): no ring either. What a rank posts its peers meet, and rank r's sums are those of its chunk.
run bench all_reduce --ranks 3 --transport shm --memory own $quick -b 3M -e 3M --trace "$work/window.json" --json "$work/json"
grep -q '"memory":"own"' "$work/json" || fail "--memory own: JSON is $(cat "$work/json")"
parses "$work/window.json"
count() { grep -c "$1" "$work/window.json"; }
[ "$(count '"name":"send ')" -eq "$(count '"name":"recv ')" ] && [ "$(count '"name":"send ')" -ge 12 ] ||
    fail "--trace of windows: $(count '"name":"send ') records posted, $(count '"name":"recv ') met"
[ "$(count '"ph":"f"')" -eq "$(count '"name":"send ')" ] || fail "--trace of windows: not every record leads to who met it"
for rank in 0 1 2; do
    sum=$(sed -n 's/.*"pid":'$rank',.*"name":"recv_reduce_copy c'$rank'".*"bytes":\([0-9]*\).*/\1/p' "$work/window.json" | awk "{ all += \$1 } END { print all + 0 }")
    [ "$sum" -eq 1048576 ] || fail "--trace of windows: rank $rank added $sum bytes, expected its chunk of 1048576"
done
refused '--memory is "mine", expected plain or own' bench all_reduce --memory mine
"$ringzero" bench all_reduce $quick -b 64K -e 64K --trace "$work/none/trace" >"$work/out" 2>"$work/err" && fail "--trace into nowhere: exit code 0"
grep -qF "$work/none/trace cannot be written" "$work/err" || fail "--trace into nowhere: said $(cat "$work/err")"

# ---- virtual time: numbers that the formula gives exactly ----
run show all_reduce --ranks 16 --count 16000 --simulate alpha=5us,beta=2GB/s --json "$work/json"
grep -qF '"ranks":16,"size":64000,"time":210,' "$work/json" || fail "--simulate: expected 30 hops of 5 + 2 us: $(cat "$work/json")"
run show all_reduce --ranks 2..65536 --bytes 64M --simulate alpha=1us,beta=25GB/s
[ "$(rows "$work/out" | wc -l)" -eq 16 ] || fail "--simulate: 2..65536 are 16 rows: $(cat "$work/out")"
rows "$work/out" | awk '$1 >= 8 && $1 <= 512 { if (!first) first = $3; if ($3 > 1.2 * first) exit 1 }' ||
    fail "--simulate: the time of 64 MiB depends on n: $(cat "$work/out")"
run show all_reduce --ranks 64 --bytes 1M --simulate alpha=5us,beta=25GB/s,nodes=8,alpha_node=500ns,beta_node=200GB/s
grep -q '8 nodes; 0.5 us, 200 GB/s within one' "$work/out" || fail "--simulate nodes: $(cat "$work/out")"
for collective in reduce_scatter all_gather broadcast reduce scatter gather all_to_all barrier; do
    run show $collective --ranks 5..9 --bytes 1M --simulate alpha=5us,beta=25GB/s
done

# ---- a rank whose clock is another, here of another time namespace, is brought into the same time ----
if unshare --time --monotonic 100000 true 2>/dev/null; then
    port=$((20000 + RANDOM % 10000))
    launched=(env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port)
    "${launched[@]}" RANK=1 unshare --time --monotonic 100000 "$ringzero" bench all_reduce $quick -b 1M -e 1M --trace "$work/ahead" >"$work/one" 2>&1 &
    other=$!
    "${launched[@]}" RANK=0 "$ringzero" bench all_reduce $quick -b 1M -e 1M --trace "$work/ahead" >"$work/out" 2>&1 || fail "two clocks: $(cat "$work/out")"
    wait $other || fail "two clocks, rank 1: $(cat "$work/one")"
    grep -o '"ts":[0-9.]*' "$work/ahead" | awk -F: '$2 > most { most = $2 } END { exit !(most > 0 && most < 50000e6) }' ||
        fail "two clocks: events are as far apart as the clocks"
    grep -q '"clocks_within_us":0.000' "$work/ahead" && fail "two clocks were taken for one"
    grep -q 'agree to within' "$work/ahead.svg" || fail "two clocks: the picture does not tell"
fi

# ---- two levels: two pretended hosts of two ranks; what leaves each is what theory says ----
# spread OPTIONS…: rank 0's output in $work/out.
spread() {
    local rank port=$((20000 + RANDOM % 10000)) pids=() code=0
    for rank in 0 1 2 3; do
        RINGZERO_HOST=h$((rank / 2)) RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 40 \
            "$ringzero" bench "$@" -b 128K -e 128K -n 1 -w 0 -c 1 >"$work/out$rank" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
    cp "$work/out0" "$work/out"
    [ $code -eq 0 ] || fail "$*: exit code $code: $(cat "$work"/out[0-3])"
}
# Four operations of 128 KiB: 2(H-1)/H of each for an all-reduce, by the two ranks of a host.
spread all_reduce
grep -q '; in two levels, 2 hosts of 2 ranks;' "$work/out" || fail "two levels are not told: $(cat "$work/out")"
grep -q '^# Bytes to other hosts per rank .*: 262144 measured, 262144 predicted OK' "$work/out" || fail "two levels: $(cat "$work/out")"
spread reduce_scatter --algo two_level
grep -q '^# Bytes to other hosts per rank .*: 131072 measured' "$work/out" || fail "reduce_scatter: $(cat "$work/out")"
# Round one ring the last rank of each host sends all: 2(n-1)/n.
spread all_reduce --algo ring
grep -q 'two levels' "$work/out" && fail "--algo ring has two levels: $(cat "$work/out")"
grep -q '^# Bytes to other hosts by rank 3 .*: 786432 measured, 786432 predicted OK' "$work/out" || fail "--algo ring: $(cat "$work/out")"
run bench all_reduce --ranks 2 $quick -b 1K -e 1K
grep -q 'other hosts' "$work/out" && fail "other hosts, of one: $(cat "$work/out")"
"$ringzero" bench all_reduce --algo two_level --ranks 2 >"$work/out" 2>&1 && fail "--algo two_level on one host: success"
grep -q 'RINGZERO_HIERARCHY is two_level, but the job has 1 host of 2 ranks' "$work/out" || fail "one host: $(cat "$work/out")"

refused '--simulate: beta is "50"' show all_reduce --simulate alpha=5us,beta=50
refused 'expected alpha and beta at least' show all_reduce --simulate alpha=5us
refused '--simulate has "gamma"' show all_reduce --simulate gamma=1
refused 'expected KEY=VALUE' show all_reduce --simulate alpha
refused 'expected nodes=N with it' show all_reduce --simulate alpha=5us,beta=5GB/s,alpha_node=1us
refused '--ranks is a range' show all_reduce --ranks 2..8
refused 'expected A, or A..B' show all_reduce --ranks 8..2 --simulate alpha=5us,beta=5GB/s
refused '--plot draws a range' show all_reduce --simulate alpha=5us,beta=5GB/s --plot "$work/x.svg"
refused 'expected a collective that all ranks call' show send --simulate alpha=5us,beta=5GB/s
refused '--algo is "tree"' bench all_reduce --algo tree
refused 'expected ring: all_to_all has no other' bench all_to_all --algo two_level
refused 'only all_reduce has another' bench broadcast --algo naive
refused '-z is "2"' bench all_reduce -z 2

exit $failed
