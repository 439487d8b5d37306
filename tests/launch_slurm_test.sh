#!/usr/bin/env bash
# Ranks started by Slurm's srun, in a cluster of this one machine that lives as long as the test.
# ctest: timeout=120 labels=plain serial
set -u
. "$(dirname "$0")/harness/launch.sh"
export PATH=$PATH:/usr/sbin
for program in slurmctld slurmd munged srun sbatch; do
  need_program $program "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
done
[ "$(id -u)" = 0 ] || skip "slurmd needs root"

stop_cluster() {
  local name pid
  for name in slurmd slurmctld munged; do
    pid=$(cat "$work/$name.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null
    for _ in $(seq 60); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
    kill -KILL "$pid" 2>/dev/null
  done
  rm -rf "$work"
}
trap stop_cluster EXIT

# start_cluster: false when the daemons do not come up, as when a port that was free is taken meanwhile.
start_cluster() {
  local host port
  host=$(hostname -s)
  port=$((26000 + RANDOM % 2000 * 2))
  chmod 755 "$work" # munge refuses what others may write to
  mkdir -p "$work/spool" "$work/state" "$work/log"
  (umask 077 && head -c 128 /dev/urandom >"$work/munge.key")
  cat >"$work/slurm.conf" <<CONF
ClusterName=ringzero
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.sock
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmdSpoolDir=$work/spool
StateSaveLocation=$work/state
SlurmctldLogFile=$work/log/slurmctld
SlurmdLogFile=$work/log/slurmd
SwitchType=switch/none
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 RealMemory=500 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
CONF
  export SLURM_CONF=$work/slurm.conf
  munged --force --key-file="$work/munge.key" --socket="$work/munge.sock" --pid-file="$work/munged.pid" \
    --log-file="$work/log/munged" --seed-file="$work/munge.seed" >"$work/start" 2>&1 || return
  slurmctld -f "$SLURM_CONF" >>"$work/start" 2>&1 </dev/null && slurmd -f "$SLURM_CONF" >>"$work/start" 2>&1 </dev/null || return
  for _ in $(seq 150); do
    sinfo -h -o %t 2>/dev/null | grep -qx idle && return
    sleep 0.1
  done
  return 1
}
start_cluster || { cat "$work/start" "$work"/log/* | tail -20; skip "the Slurm daemons do not come up here"; }

export RINGZERO_LOG=info
works "srun" srun -n 4 "$ringzero" bench $quick
says "srun" 'rank 3 of 4, started by Slurm; rank 0 is at 127\.0\.0\.1 port (1[5-9]|2[0-9]|3[0-4])[0-9]{3}$'
works "srun over tcp" srun -n 3 "$ringzero" bench $quick --transport tcp
works "MASTER_ADDR" env MASTER_ADDR=localhost MASTER_PORT="$(free_port)" srun -n 2 "$ringzero" bench $quick
says "MASTER_ADDR" 'rank 0 is at localhost'
if has_pmix && srun --mpi=list 2>&1 | grep -q pmix; then
  works "srun with PMIx" srun --mpi=pmix -n 2 "$ringzero" bench $quick
  says "srun with PMIx" 'started by Slurm; rank 0 is at 127\.0\.0\.1'
  ! grep -qE 'port (1[5-9]|2[0-9]|3[01])[0-9]{3}$' "$work/out" || fail "srun with PMIx: the port was worked out" "$work/out"
fi
if srun --mpi=list 2>&1 | grep -q pmi2; then
  works "srun with PMI" srun --mpi=pmi2 -n 2 "$ringzero" bench $quick
  says "srun with PMI" 'started by MPICH'
fi

# A batch script's shell has SLURM_PROCID and SLURM_NTASKS, but is no rank: what it starts itself are ranks of --ranks.
cat >"$work/batch" <<SCRIPT
#!/bin/bash
"$ringzero" bench $quick --ranks 2
srun -n 3 "$ringzero" bench $quick
SCRIPT
timeout 30 sbatch -W -n 4 -o "$work/out" "$work/batch" >"$work/submitted" 2>&1 || fail "sbatch" "$work/submitted"
[ "$(grep -c '^# Out of bounds values : 0 OK$' "$work/out")" = 2 ] || fail "sbatch: not two right results" "$work/out"
says "sbatch" 'rank 2 of 3, started by Slurm'
[ "$(grep -c 'started by' "$work/out")" = 3 ] || fail "sbatch: the script's own shell counted as a rank" "$work/out"

# The scripts of bench/recipes, on as many nodes as there are.
recipes=$(realpath "$(dirname "$0")/../bench/recipes")
export RINGZERO=$ringzero
submit() { timeout 40 sbatch -W --nodes 1 --ntasks-per-node 2 -o "$work/out" "$@" >"$work/submitted" 2>&1 || fail "$*" "$work/out"; }
submit "$recipes/bench.sbatch" all_reduce -b 1M -e 1M -n 2
good "bench.sbatch" "$work/out"
says "bench.sbatch" '^0: channel 0: 0 ► 1'
seq 20000 >"$work/text"
small="--layers 1 --heads 2 --channels 16 --seq 16 --batch 2"
submit "$recipes/train.sbatch" "$work/text" "$work/run" --steps 6 --stop-at 3 $small
: >"$work/out"
submit "$recipes/train.sbatch" "$work/text" "$work/run" --steps 6 $small
says "train.sbatch" '^# resumed after step 3'
says "train.sbatch" '^# measured and predicted: OK'
[ -s "$work/run/run.html" ] && [ "$(cat "$work"/run/main-*.log | grep -c trl)" = 6 ] || fail "train.sbatch: its page and log"

trains "train" srun -n 2 "$ringzero"
unset RINGZERO_LOG
death "a rank killed" srun -n 3 "$ringzero" bench
finish
