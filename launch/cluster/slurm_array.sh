#!/bin/bash
#SBATCH --job-name=engram
#SBATCH --array=1-5
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A-%a.out
#
# One run per seed, resumed after every time limit and preemption until it has trained for all steps:
#
#   sbatch --array=1-5 slurm_array.sh --env boxworld --core rmc --num-actors 7 --total-steps 100000000
#
# ENGRAM_RUNS   folder of the runs, on a disk that all nodes share; the default is ./runs
# ENGRAM_IMAGE  Apptainer image that contains rl-train; the default is rl-train from PATH
set -u
run=${ENGRAM_RUNS:-runs}/$SLURM_JOB_NAME-$SLURM_ARRAY_JOB_ID-seed-$SLURM_ARRAY_TASK_ID

# On the node's local disk: locks on shared disks are slow, and nodes have different CPUs.
export NUMBA_CACHE_DIR=${NUMBA_CACHE_DIR-${SLURM_TMPDIR:-/tmp}/engram-$(id -u)}

if [ -e "$run/config.toml" ]; then
    command=(rl-train --resume "$run")
else
    command=(rl-train "$@" --seed "$SLURM_ARRAY_TASK_ID" --run-dir "$run")
fi
if [ -n "${ENGRAM_IMAGE:-}" ]; then
    command=(apptainer exec ${SLURM_JOB_GPUS:+--nv} "$ENGRAM_IMAGE" "${command[@]}")
fi

# SIGUSR1 comes before the time limit, SIGTERM before a preemption (SLURM requeues) or a cancellation.
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
if [ "$requeue" ] && { [ "$code" = 0 ] || [ "$code" = 138 ]; }; then # 138: signaled while Python started
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
