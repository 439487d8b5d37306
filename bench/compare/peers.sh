#!/usr/bin/env bash
# peers: ringzero beside Open MPI and MPICH, in one run: interleaved rounds, medians, rounds of one state of the
# machine.
#
#   bench/compare/peers.sh [OPTION…]
#     --ranks "2 4 8"   --transports "shm tcp"   --sizes 8,1K,64K,1M,16M,128M   --modes in,out   --ms 40 (a point)
#     --collectives all_reduce,reduce_scatter,all_gather,broadcast               --rounds 3
#     --memory plain (malloc) | own (ring_alloc, MPI_Alloc_mem)
#     --build DIR (build)   --out FILE (bench/results/peers.md)   --raw FILE (keep the measurements)
#     --estimate        only say how long it would take
#   A full run takes about 15 minutes on two cores. For a look: --ranks 2 --sizes 8,64K --rounds 1 --ms 10 --out /tmp/look.md
#
# Needs Debian's openmpi-bin libopenmpi-dev mpich libmpich-dev, and a build. All three run the same loop (sweep.c).
# In each round every (transport, ranks) is one group: the exchange of a line between two cores before and after it
# (bare_edge) must tell the same state of the machine, else the group is not counted. peers.awk makes the table.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
ranks="2 4 8" transports="shm tcp" sizes=8,1K,64K,1M,16M,128M modes=in,out ms=40 rounds=3 memory=plain
collectives=all_reduce,reduce_scatter,all_gather,broadcast
build=$root/build out=$root/bench/results/peers.md raw= estimate=0
while [ $# -gt 0 ]; do
  case $1 in
  --estimate) estimate=1; shift; continue ;;
  --ranks | --transports | --sizes | --modes | --ms | --rounds | --collectives | --memory | --build | --out | --raw)
    [ $# -ge 2 ] || { echo "peers.sh: $1 needs a value" >&2; exit 2; }
    declare "${1#--}=$2"
    shift 2
    ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "peers.sh: option is \"$1\"; expected one of those that --help names" >&2; exit 2 ;;
  esac
done

# seconds RANKS… TRANSPORTS…: of a round. Every point takes --ms or a few operations, whichever is longer; so large
# sizes on many ranks cost the most.
seconds() {
  awk -v ranks="$1" -v transports="$2" -v sizes="$sizes" -v modes="$modes" -v ms="$ms" -v list="$collectives" \
    -v cores="$(nproc)" 'BEGIN {
      points = split(list, c, ",") * split(modes, m, ","); if (list ~ /broadcast/ && m[2] != "") points--
      for (i = 1; i <= split(ranks, r, " "); i++) for (j = 1; j <= split(transports, t, " "); j++) {
        total += 4
        for (k = 1; k <= split(sizes, s, ","); k++) {
          bytes = s[k] + 0; if (s[k] ~ /K/) bytes *= 1024; if (s[k] ~ /M/) bytes *= 1048576
          one = 6 * bytes * r[i] / 4e9 * (t[j] == "tcp" ? 1.5 : 1) + (r[i] > cores ? 0.02 : 0)
          total += 3 * points * (ms / 1000 > one ? ms / 1000 : one)
        }
      }
      printf "%d", total }'
}
per_round=$(seconds "$ranks" "$transports")
echo "peers: about $((per_round / 60 + 1)) minutes a round, $((rounds * per_round / 60 + 1)) in all" >&2
[ $estimate = 0 ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in ring_bench bare_edge bare_copy; do
  [ -x "$build/$program" ] || { echo "peers.sh: $build/$program is missing: build first, or give --build" >&2; exit 1; }
done
for mpi in openmpi mpich; do
  "mpicc.$mpi" -std=gnu11 -O3 -D_GNU_SOURCE -I"$root" "$here/mpi_bench.c" "$here/sweep.c" -o "$work/$mpi" ||
    { echo "peers.sh: no $mpi: apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev" >&2; exit 1; }
done

points=(--collectives "$collectives" --sizes "$sizes" --modes "$modes" --ms "$ms" --memory "$memory")

# A program that takes far longer than the others is stopped: MPICH spins while it waits, and with more ranks than
# cores it may not end within the hour. What it had measured counts; for the rest the other MPI is the better one.
run_limited() { timeout --foreground -k 5 "$limit" "$@"; }

# Ranks that share cores lie equally many on each, neighbours together, with all three: ringzero's launcher does so, and
# the MPIs, which it makes up to twice as fast where messages are small, are told to.
cat >"$work/bound" <<'END'
#!/bin/sh
exec taskset -c "$((${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID} / RANKS_PER_CORE))" "$@"
END
chmod +x "$work/bound"
shares_evenly() { [ "$1" -gt "$(nproc)" ] && [ $(($1 % $(nproc))) = 0 ]; }

# mpi_program MPI RANKS: what mpirun is to start, and in the environment what that needs.
mpi_program() {
  program=("$work/$1")
  shares_evenly "$2" || return 0
  program=("$work/bound" "$work/$1")
  export RANKS_PER_CORE=$(($2 / $(nproc)))
}

run_ringzero() { run_limited "$build/ring_bench" --ranks "$2" --transport "$1" "${points[@]}"; }

# Open MPI starts as root only when told so, and yields only when told so; with a core for each rank it does better
# without.
run_openmpi() {
  local arguments=(--mca pml ob1 --mca oob_tcp_if_include lo --mca btl)
  if [ "$1" = shm ]; then arguments+=(self,vader); else arguments+=(self,tcp --mca btl_tcp_if_include lo); fi
  [ "$2" -le "$(nproc)" ] || arguments+=(--oversubscribe --mca mpi_yield_when_idle 1)
  mpi_program openmpi "$2"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 run_limited mpirun.openmpi -n "$2" "${arguments[@]}" \
    "${program[@]}" "${points[@]}"
}

# MPICH on one host takes shared memory; told that ranks share nothing, and UCX that there is only TCP, it takes
# sockets.
run_mpich() {
  local environment=(MPIR_CVAR_NOLOCAL=0)
  [ "$1" = shm ] || environment=(MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self UCX_NET_DEVICES=lo)
  mpi_program mpich "$2"
  (export "${environment[@]}" && run_limited mpirun.mpich -n "$2" "${program[@]}" "${points[@]}")
}

exchange() { "$build/bare_edge" "$@" | awk '/^exchange/ { print $2 }'; }

# One group: all three, in an order that turns with the round, between two looks at the state.
# group ROUND TRANSPORT RANKS
group() {
  local order=(ringzero openmpi mpich) before after i peer
  before=$(exchange)
  limit=$(($(seconds "$3" "$2") + 15)) # thrice what each should take
  : >"$work/group"
  for i in 0 1 2; do
    peer=${order[$(((i + $1) % 3))]}
    run_$peer "$2" "$3" </dev/null 2>"$work/errors" | sed -n "s/^point /$peer /p" >>"$work/group" ||
      echo "peers: $peer did not finish at $3 ranks over $2 (limit $limit s): $(tail -3 "$work/errors" | tr '\n' ' ')" >&2
  done
  # The marks for two ranks that share memory, in the same moments.
  if [ "$2" = shm ] && [ "$3" = 2 ]; then
    "$build/bare_edge" 1048576 16777216 134217728 | awk '/^bare/ { print "bare-" $3, "all_reduce", $2, "in", $4, 1 }' >>"$work/group"
    local copied # sizes that bare_copy takes
    copied=$(numfmt --from=iec ${sizes//,/ } | awk '$1 >= 8 && $1 % 8 == 0 && $1 <= 134217728')
    # shellcheck disable=SC2086 # a list
    [ -z "$copied" ] || "$build/bare_copy" "$memory" $copied | awk '/^bare/ { print "bare-copy", $2, $3, $4, $5, 1 }' >>"$work/group"
  fi
  after=$(exchange)
  sed "s/^/$1 $2 $3 $before $after /" "$work/group" >>"$work/raw"
}

begin=$(date +%s)
for round in $(seq "$rounds"); do
  for transport in $transports; do
    for n in $ranks; do group "$round" "$transport" "$n"; done
  done
  spent=$(($(date +%s) - begin))
  echo "peers: round $round of $rounds done after ${spent} s; about $(((rounds - round) * spent / round)) s more" >&2
done

mkdir -p "$(dirname "$out")"
{
  echo "# ringzero beside Open MPI and MPICH"
  echo
  echo "$(date -u +%F), $(nproc) cores ($(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)), $(uname -sr);" \
    "$(mpirun.openmpi --version | head -1), MPICH $(mpichversion | sed -n 's/^MPICH Version:[[:space:]]*//p')." \
    "$rounds rounds, $ms ms a point, $memory memory, made by \`bench/compare/peers.sh\`."
  echo
  awk -f "$here/peers.awk" "$work/raw"
} >"$out"
[ -z "$raw" ] || cp "$work/raw" "$raw"
echo "peers: $out" >&2
