#!/usr/bin/env bash
# Ranks as processes that die, as a user would see it: cases C5, C7, C8 and C18 with the program itself.
# ctest: timeout=180 serial
set -u
ringzero=${RINGZERO:-build/ringzero}
work=$(mktemp -d)
failures=0
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT

fail() { echo "FAILED: $1"; [ -z "${2:-}" ] || sed 's/^/    /' "$2"; failures=$((failures + 1)); }
shm_entries() { ls /dev/shm | sort; }
listeners() { cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A"' | wc -l; }
# rank_pids PARENT: the ranks that a launcher process has started, once there are N of them.
rank_pids() {
  local pids
  for _ in $(seq 100); do
    pids=$(pgrep -P "$1")
    [ "$(wc -w <<<"$pids")" -ge "$2" ] && { echo $pids; return; }
    sleep 0.05
  done
}
# measuring FILE: waits until the program that writes it has begun its rows: set-up and the limit are behind it.
measuring() { for _ in $(seq 600); do grep -q 'of limit$' "$1" && return; sleep 0.05; done; }
# gone PID SECONDS: waits until a process is gone.
gone() { for _ in $(seq $(($2 * 20))); do kill -0 "$1" 2>/dev/null || return 0; sleep 0.05; done; return 1; }

shm_before=$(shm_entries)
listeners_before=$(listeners)

# ---- C5: four ranks loop a 64 MiB all-reduce, rank 2 is killed ----
for transport in shm tcp; do
  RINGZERO_TIMEOUT_MS=8000 "$ringzero" bench all_reduce --ranks 4 --transport $transport -b 64M -e 64M -n 100000 -c 0 >"$work/c5" 2>&1 &
  parent=$!
  ranks=($(rank_pids $parent 4))
  measuring "$work/c5"
  sleep 1.5
  kill -KILL "${ranks[2]}"
  gone $parent 13 || fail "C5 $transport: still running 13 s after a rank was killed"
  wait $parent
  code=$?
  [ $code = 137 ] || fail "C5 $transport: exit code $code, expected 137 (128 + SIGKILL)" "$work/c5"
  for rank in 0 1 3; do
    grep -qE "rank $rank(/4)?: .*all_reduce #[0-9]+ .*rank 2 died" "$work/c5" ||
      fail "C5 $transport: no line of rank $rank with the operation, its number and rank 2" "$work/c5"
  done
  for pid in "${ranks[@]}"; do kill -0 "$pid" 2>/dev/null && fail "C5 $transport: process $pid is left"; done
done

# ---- C7: /dev/shm of 1 MiB, as in a small container ----
if unshare -rm true 2>/dev/null; then
  unshare -rm sh -c "mount -t tmpfs -o size=1m none /dev/shm && exec '$ringzero' bench all_reduce --ranks 4 --transport shm -b 1M -e 1M -n 2 -w 1" \
    >"$work/c7" 2>&1
  code=$?
  [ $code = 0 ] && grep -q 'OK' "$work/c7" || fail "C7: exit code $code with a /dev/shm of 1 MiB" "$work/c7"
else
  echo "C7 skipped: no user namespaces here"
fi

# ---- C8: twenty times, all four ranks are killed in mid-operation and the job is started again; another job lives on ----
"$ringzero" bench all_reduce --ranks 2 -b 1K -e 1K -n 100000 -w 1 >"$work/other" 2>&1 &
other=$!
for round in $(seq 20); do
  "$ringzero" bench all_reduce --ranks 4 -b 4M -e 4M -n 100000 -c 0 >"$work/c8" 2>&1 &
  parent=$!
  ranks=($(rank_pids $parent 4))
  sleep 0.2
  kill -KILL "${ranks[@]}" 2>/dev/null
  gone $parent 10 || { fail "C8 round $round: the launcher is still there"; kill -KILL $parent; }
  wait $parent && fail "C8 round $round: success although all ranks were killed" "$work/c8"
done
"$ringzero" bench all_reduce --ranks 4 -b 4M -e 4M -n 2 >"$work/c8" 2>&1 || fail "C8: the 21st run failed" "$work/c8"
wait $other || fail "C8: another job suffered" "$work/other"

# ---- C18: all ranks are killed, at any moment, and started again at once on the same port, twenty times; the last one ends well ----
# start ARGUMENTS…: three ranks by torchrun's variables, on $port; their processes are in ranks.
port=$((20000 + RANDOM % 10000))
start() {
  ranks=()
  for rank in 0 1 2; do
    RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port RINGZERO_TIMEOUT_MS=10000 \
      "$ringzero" bench all_reduce "$@" >"$work/c18-$rank" 2>&1 &
    ranks+=($!)
  done
}
for round in $(seq 20); do
  start -b 1M -e 1M -n 1000000 -c 0
  sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
  kill -KILL "${ranks[@]}"
  for pid in "${ranks[@]}"; do
    wait "$pid" 2>/dev/null
    code=$?
    [ $code = 137 ] || fail "C18 round $round: exit code $code of a rank before it was killed" "$work/c18-0"
  done
done
start -b 1M -e 1M -n 2
for pid in "${ranks[@]}"; do wait "$pid" || fail "C18: the 21st run failed" "$work/c18-0"; done
grep -q 'Out of bounds values : 0 OK' "$work/c18-0" || fail "C18: the 21st run is not right" "$work/c18-0"

# ---- the launcher is killed: its ranks go with it ----
"$ringzero" bench all_reduce --ranks 3 -b 1M -e 1M -n 1000000 -c 0 >"$work/orphans" 2>&1 &
parent=$!
ranks=($(rank_pids $parent 3))
sleep 0.3
kill -KILL $parent
wait $parent 2>/dev/null
for pid in "${ranks[@]}"; do gone "$pid" 5 || fail "rank process $pid outlived its launcher"; done

# ---- torchrun's variables, ranks started by hand ----
port=$((20000 + RANDOM % 20000))
for rank in 0 1 2; do
  RANK=$rank WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=$port "$ringzero" bench all_gather -b 3K -e 3K -n 2 >"$work/env$rank" 2>&1 &
done
for job in $(jobs -p); do wait "$job" || true; done
grep -q 'Out of bounds values : 0 OK' "$work/env0" || fail "three ranks by torchrun's variables" "$work/env0"

[ "$(shm_entries)" = "$shm_before" ] || fail "left in /dev/shm: $(shm_entries)"
[ "$(listeners)" -le "$listeners_before" ] || fail "sockets still listening: $(listeners), before $listeners_before"
echo "$failures failed"
[ $failures = 0 ]
