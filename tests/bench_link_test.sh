#!/bin/bash
# `ringzero link`: over each transport the rows asked for, JSON that parses, what arrives is what was sent (the program looks); a
# rank that dies; bad input is one line and 2. Figures are looked at by nobody here.
# ctest: timeout=120
set -u
. "$(dirname "$0")/harness/program.sh"

for transport in shm tcp; do
    "$ringzero" link --transport $transport -b 7 -e 700000 -f 300 --json "$work/json" >"$work/out" 2>"$work/err" ||
        fail "$transport: exit code $?: $(cat "$work/err")"
    sizes=$(grep -v '^#' "$work/out" | awk 'NF != 5 { print "odd" } { printf "%s ", $1 }')
    [ "$sizes" = "7 2100 630000 " ] || fail "$transport: rows are: $(cat "$work/out")"
    for words in 'Latency' 'Message rate' 'Limit'; do grep -q "^# $words" "$work/out" || fail "$transport: no line \"$words\""; done
    [ "$(grep -c '256 KiB that stay cached' "$work/out")" -eq "$([ $transport = tcp ] && echo 1 || echo 0)" ] ||
        fail "$transport: limits are $(grep -A1 '^# Limit' "$work/out")"
    number='[0-9.e+-]+'
    head -1 "$work/json" | grep -qE '^\{"transport":"'$transport'","latency_us":'$number',"messages_per_s":'$number',"limit_one_way_bw":'$number',"limit_both_ways_bw":'$number'\}$' ||
        fail "$transport: JSON begins $(head -1 "$work/json")"
    [ "$(grep -cE '^\{"transport":"'$transport'","size":[0-9]+,"one_way_bw":'$number',"both_ways_bw":'$number'\}$' "$work/json")" -eq 3 ] ||
        fail "$transport: JSON is $(cat "$work/json")"
done
"$ringzero" link --help | grep -q 'ringzero link --transport tcp' || fail "--help has no example"

# A rank that dies: the other one says so, and nobody hangs.
"$ringzero" link --transport shm -b 1M -e 32M -f 2 >"$work/out" 2>"$work/err" &
job=$!
for _ in $(seq 200); do
    grep -q '^# Limit' "$work/out" && break
    sleep 0.05
done
victim=$(grep -ls "^PPid:[[:space:]]*$job\$" /proc/[0-9]*/status | tail -1 | tr -dc 0-9)
kill -KILL "$victim"
wait $job
code=$?
[ $code -eq 137 ] || fail "a killed rank: exit code $code, expected 137: $(cat "$work/err")"
grep -qE '^ringzero link: rank [01]/2: .*rank [01] ' "$work/err" || fail "a killed rank: said $(cat "$work/err")"

refused '--ranks is 3, expected 2' link --ranks 3
refused '-b is 0 bytes' link -b 0
refused '-b is 2048 bytes, expected at least 1 and at most -e' link -b 2K -e 1K
refused '-f is "1"' link -f 1
refused 'found "all_reduce"' link all_reduce
refused '--transport is "pigeon"' link --transport pigeon

exit $failed
