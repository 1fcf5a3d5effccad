#!/bin/bash
#SBATCH --job-name=engram
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#
# One run whose actors are on all nodes of the job; the learner is on the first node, where this script runs:
#
#   sbatch --nodes=4 slurm_ray.sh --env boxworld --core rmc --num-actors auto
#
# ENGRAM_RUNS   folder of the runs, on a disk that all nodes share; the default is ./runs
set -u
run=${ENGRAM_RUNS:-runs}/$SLURM_JOB_NAME-$SLURM_JOB_ID
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR-${SLURM_TMPDIR:-/tmp}/engram-$(id -u)}

# One port per job, since jobs may share a node; a token keeps other users of the cluster out.
address=$(hostname -I | cut -d ' ' -f 1):$((20000 + SLURM_JOB_ID % 20000))
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')

ray start --head --block --node-ip-address "${address%:*}" --port "${address#*:}" --num-cpus "$SLURM_CPUS_PER_TASK" \
    --include-dashboard=false --disable-usage-stats &
nodes=($!)
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$(hostname)" \
        ray start --block --address "$address" --num-cpus "$SLURM_CPUS_PER_TASK" --disable-usage-stats &
    nodes+=($!)
fi
until ray status --address "$address" >/dev/null 2>&1; do
    kill -0 "${nodes[0]}" || exit 1
    sleep 1
done

if [ -e "$run/config.toml" ]; then
    command=(rl-train --resume "$run" --ray-address "$address")
else
    command=(rl-train "$@" --run-dir "$run" --ray-address "$address")
fi
signals=0 requeue=
trap 'signals=$((signals + 1)) requeue=1; kill -USR1 "$child"' USR1
trap 'signals=$((signals + 1)); kill -TERM "$child"' TERM
"${command[@]}" &
child=$!
while :; do
    before=$signals
    wait "$child"
    code=$?
    [ "$signals" = "$before" ] && break # a signal ends `wait` before the child has ended
done
kill "${nodes[@]}"
wait "${nodes[@]}"
if [ "$requeue" ] && { [ "$code" = 0 ] || [ "$code" = 138 ]; }; then # 138: signaled while Python started
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
