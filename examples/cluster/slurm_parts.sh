#!/bin/bash
# Index, label, filter and shard a corpus in parts, each a task of a Slurm array, without Ray; run it again and it goes
# on where it stopped. The second form is what Slurm runs.
#
#   examples/cluster/slurm_parts.sh s3://bucket/audio s3://bucket/work my.yaml
#   sbatch examples/cluster/slurm_parts.sh --part label s3://bucket/work --config my.yaml
#SBATCH --job-name=voxstill-parts
#SBATCH --array=1-4
#SBATCH --cpus-per-task=2
#SBATCH --requeue
#SBATCH --signal=B:TERM@60
set -euo pipefail
if [ "$1" = --part ]; then
    exec voxstill "${@:2}" --part auto --set engine.name=inline
fi
source=$1 work=$2 config=$3
job=$(sbatch --parsable "$0" --part index "$source" --work "$work" --config "$config")
for step in label filter shard; do
    job=$(sbatch --parsable --dependency="afterok:$job" --kill-on-invalid-dep=yes "$0" \
        --part "$step" "$work" --config "$config")
done
echo "the last step is job $job"
