#!/bin/bash
# Labels a corpus on several machines of a Slurm cluster; sbatch it again and it goes on where it stopped.
#
#   sbatch examples/cluster/slurm.sh s3://bucket/work my.yaml
#SBATCH --job-name=voxstill-label
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:TERM@60
set -euo pipefail
work=$1 config=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head_ip=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$head_ip" --port=6379 --include-dashboard=false --block &
sleep 15
srun --overlap --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
    ray start --address="$head_ip:6379" --block &
sleep 15
exec voxstill label "$work" --config "$config" --set engine.address="$head_ip:6379"
