#!/bin/bash
# node.sh: the ranks of one node, where there is no launcher: run it on every node, with the same ADDRESS and PORT, as torchrun is run.
#
#   bench/recipes/node.sh NODE NODES RANKS ADDRESS PORT PROGRAM…
#   on 10.0.0.1   bench/recipes/node.sh 0 2 4 10.0.0.1 29500 ringzero train --data 'shards/*.bin'
#   on 10.0.0.2   bench/recipes/node.sh 1 2 4 10.0.0.1 29500 ringzero train --data 'shards/*.bin'
#
# NODE counts from 0; RANKS is per node; rank 0 listens at ADDRESS, which is node 0's. torchrun itself starts programs too:
#   torchrun --no-python --nnodes 2 --node-rank 0 --nproc-per-node 4 --master-addr 10.0.0.1 --master-port 29500 ringzero train …
set -u
[ $# -ge 6 ] || { echo "node.sh: expected NODE NODES RANKS ADDRESS PORT PROGRAM…" >&2; exit 2; }
node=$1 nodes=$2 ranks=$3
export MASTER_ADDR=$4 MASTER_PORT=$5 WORLD_SIZE=$((nodes * ranks)) LOCAL_WORLD_SIZE=$ranks
shift 5
for ((i = 0; i < ranks; i++)); do
  RANK=$((node * ranks + i)) LOCAL_RANK=$i "$@" &
done
code=0
for ((i = 0; i < ranks; i++)); do wait -n || code=$?; done
exit $code
