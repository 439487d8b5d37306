#!/usr/bin/env bash
# hierarchy: what two levels are worth where the link between hosts is slow: two network namespaces of four ranks each, joined by a veth
# pair whose ends send at a limited rate; round one ring, and in two levels, with one channel and with two.
#
#   bench/compare/hierarchy.sh [ROUNDS] [RATE] [COLLECTIVE…]     after building; RATE as tc takes it, 1gbit
#
#   ranks 0-3  namespace left ── tbf RATE ──► │ ◄── tbf RATE ── namespace right  ranks 4-7
#
# Shared machines change their speed by the second, so a round measures all ways one after another, every second round backwards, and a
# ratio is taken within a round. Rounds add up in build/hierarchy.tsv (remove it to start anew); bench/results/hierarchy.md is written
# from it. Needs root, or user namespaces, and the kernel's veth and tbf.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-3}
rate=${2:-1gbit}
collectives=${*:3}
raw=$PWD/build/hierarchy.tsv
ways="ring:1 ring:2 two_level:1 two_level:2"

if [ "${RINGZERO_INNER:-}" != 1 ]; then
  inner=(env RINGZERO_INNER=1 unshare --net)
  if unshare --user --map-root-user --net true 2>/dev/null; then
    exec "${inner[@]}" --user --map-root-user bash "$0" "$rounds" "$rate" ${collectives:-all_reduce reduce_scatter all_gather}
  fi
  exec "${inner[@]}" bash "$0" "$rounds" "$rate" ${collectives:-all_reduce reduce_scatter all_gather}
fi

work=$(mktemp -d)
trap 'kill "${holder:-}" 2>/dev/null; rm -rf "$work"' EXIT
unshare --net sleep 1000 &
holder=$!
for _ in $(seq 100); do [ "$(readlink /proc/$holder/ns/net)" != "$(readlink /proc/$$/ns/net)" ] && break; sleep 0.02; done
right() { nsenter --target "$holder" --net "$@"; }
ip link set lo up
ip link add left0 type veth peer name right0 netns "$holder"
ip address add 10.78.0.1/24 dev left0
ip link set left0 up
right ip link set lo up
right ip address add 10.78.0.2/24 dev right0
right ip link set right0 up
tc qdisc add dev left0 root tbf rate "$rate" burst 512k latency 100ms
right tc qdisc add dev right0 root tbf rate "$rate" burst 512k latency 100ms

# measure COLLECTIVE WAY: lines of size and time out of place
measure() {
  local algorithm=${2%:*} channels=${2#*:} rank pids=() command
  for rank in 0 1 2 3 4 5 6 7; do
    command=(env RANK=$rank WORLD_SIZE=8 MASTER_ADDR=10.78.0.1 MASTER_PORT=29500 RINGZERO_HOST=h$((rank / 4)) RINGZERO_CHANNELS="$channels"
      timeout 60 build/ringzero bench "$1" --algo "$algorithm" -b 64K -e 16M -f 16 -n 4 -w 1 -c 1)
    [ $rank -eq 0 ] && command+=(--json "$work/json")
    if [ $rank -lt 4 ]; then "${command[@]}" >"$work/out$rank" 2>&1 &
    else right "${command[@]}" >"$work/out$rank" 2>&1 & fi
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || { cat "$work"/out?; exit 1; } >&2; done
  sed -n 's/^{"size":\([0-9]*\),.*"out_of_place":{"time":\([0-9.]*\),.*/\1 \2/p' "$work/json"
}

touch "$raw"
for ((round = 1; round <= rounds; round++)); do
  for collective in $collectives; do
    order=$ways
    [ $(($(wc -l <"$raw") % 2)) -eq 1 ] && order=$(printf '%s\n' $ways | tac | tr '\n' ' ')
    for way in $order; do measure "$collective" "$way" >"$work/$way"; done
    for size in $(cut -d ' ' -f 1 "$work/ring:1"); do
      printf '%s\t%s\t%s' "$rate" "$collective" "$size"
      for way in $ways; do printf '\t%s' "$(awk -v s="$size" '$1 == s { print $2 }' "$work/$way")"; done
      printf '\n'
    done | tee -a "$raw"
  done
done

# median KEY EXPRESSION FORMAT, of the rounds whose rate, collective and size are KEY
median() {
  awk -F '\t' -v k="$1" "\$1 \" \" \$2 \" \" \$3 == k { print $2 }" "$raw" | sort -g |
    awk -v f="$3" '{ v[NR] = $1 } END { printf f, NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
spread() {
  awk -F '\t' -v k="$1" "\$1 \" \" \$2 \" \" \$3 == k { print $2 }" "$raw" | sort -g | awk '{ v[NR] = $1 } END { printf "%.2f … %.2f", v[1], v[NR] }'
}
{
  echo "# Two levels over a slow link"
  echo
  echo "$(date +%F), $(nproc) cores ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)), 2 pretended hosts of 4 ranks: network namespaces, TCP over"
  echo "a veth pair that tbf limits, shared memory inside; made by \`bench/compare/hierarchy.sh\`. Times in ms out of place, float32: medians over"
  echo "rounds. Gain: the ring's time, with whichever number of channels is better, by that of two levels, likewise: median of the rounds' own"
  echo "ratios; in brackets the smallest and the largest. In theory, by the bytes that leave a host: 2(n−1)/n by 2(H−1)/H of an all_reduce's, so 1.75."
  echo "Eight ranks share the cores, so what is done inside a host is slower than it would be. The smallest size has parts of 8 KiB, which are"
  echo "exchanged in log n rounds either way. At 10 Gbit/s the cores are the limit, not the wire."
  cut -f 1,2 "$raw" | awk '!seen[$0]++' | while read -r at collective; do
    echo
    echo "## $collective, $at, $(awk -F '\t' -v r="$at" -v c="$collective" '$1 == r && $2 == c && $3 == 65536' "$raw" | wc -l) rounds"
    echo
    echo "| bytes | ring, 1 channel | 2 channels | two levels, 1 channel | 2 channels | gain |"
    echo "|---|---|---|---|---|---|"
    awk -F '\t' -v r="$at" -v c="$collective" '$1 == r && $2 == c && !seen[$3]++ { print $3 }' "$raw" | while read -r size; do
      key="$at $collective $size" better='($4 < $5 ? $4 : $5) / ($6 < $7 ? $6 : $7)'
      printf '| %s |' "$(numfmt --to=iec "$size")"
      for column in 4 5 6 7; do median "$key" "\$$column / 1000" ' %.3g |'; done
      echo " $(median "$key" "$better" %.2f) ($(spread "$key" "$better")) |"
    done
  done
} >bench/results/hierarchy.md
