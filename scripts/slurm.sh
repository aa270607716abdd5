#!/usr/bin/env bash
# levelfield on a SLURM cluster. Submit from the repository, after `make quickstart` or `make test` has set up .venv there.
#
# One training on several nodes, one task per GPU; the loss sees the batch of all GPUs:
#   sbatch --nodes=2 --gpus-per-node=4 --ntasks-per-node=4 scripts/slurm.sh \
#     --config configs/data/grocery_store.yaml --data.root DIR --model.loss ArcFaceLoss --data.batch_size 512
#
# A study on all GPUs of the allocation, one job per GPU, distributed by Ray (pip install 'levelfield[ray]'):
#   sbatch --nodes=2 --gpus-per-node=4 --cpus-per-task=32 scripts/slurm.sh \
#     study run configs/study/grocery_quick.yaml --data.root DIR
#
# 90 seconds before the time limit SLURM signals this script, which stops levelfield and requeues the job: a fit resumes at
# its last epoch (docs/tutorial_gpus.md), a study without the trainings that had not ended. SLURM itself requeues a preempted
# job. `fit` before the options may be given or left out.
#
# Options of sbatch go before the script and override the lines below; account and partition are your cluster's.
#SBATCH --job-name=levelfield
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}"
export PATH="$PWD/.venv/bin:$PATH"
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun no longer takes it from the job

# Run levelfield. At the signal pass it on, and start the job again unless levelfield has finished.
run() {
  local job="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}" # the id alone can mean the whole array
  "$@" &
  local work=$!
  trap 'kill -USR1 "$work" || true; wait "$work" && exit 0; scontrol requeue "${job:-$SLURM_JOB_ID}"; exit 130' USR1
  wait "$work"
}

case "${1:-}" in
  --*) set -- fit "$@" ;;
esac
case "${1:-}" in
  fit)
    shift
    # --wait: if one task fails (e.g. disk full), end the others, which would wait for it.
    run srun --wait=300 levelfield fit --config configs/trainer/gpus.yaml \
      --trainer.num_nodes "$SLURM_JOB_NUM_NODES" --trainer.devices "$SLURM_NTASKS_PER_NODE" \
      ${SLURM_RESTART_COUNT:+--resume} "$@"
    ;;
  study)
    nodes="$SLURM_JOB_NUM_NODES"
    read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST") # the first node, which runs this script
    address="$head:$((20000 + SLURM_JOB_ID % 20000))"               # another job may have a cluster on this node
    # No telemetry; and no lower priority for the jobs.
    export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
    # Other users of these nodes must not control the cluster.
    RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
    # Ray's workers inherit its variables: with those of a task they would be ranks of one training.
    alone='unset SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS "${!SLURM_STEP_@}"; exec "$@"'
    ray=(bash -c "$alone" _ ray start --block --num-cpus="$SLURM_CPUS_ON_NODE" --object-store-memory=80000000)
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    "${ray[@]}" --head --port="${address#*:}" --include-dashboard=false &
    if [ "$nodes" -gt 1 ]; then
      srun --overlap --nodes=$((nodes - 1)) --ntasks=$((nodes - 1)) --ntasks-per-node=1 --exclude="$head" \
        --cpus-per-task="$SLURM_CPUS_ON_NODE" "${ray[@]}" --address="$address" &
    fi
    # The study takes as many slots as the cluster has room for at its start.
    until [ "$(ray status --address="$address" 2>/dev/null | grep -c ' node_')" -ge "$nodes" ]; do
      if [ "$SECONDS" -gt 300 ]; then
        echo "scripts/slurm.sh: after 300 seconds Ray has not started on all $nodes nodes at $address" >&2
        exit 1
      fi
      sleep 1
    done
    run srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" levelfield study "${2:?give run or resume}" \
      --executor ray --executor.address "$address" --trainer.accelerator gpu --trainer.devices 1 "${@:3}"
    ;;
  *)
    echo "scripts/slurm.sh: give options of fit, or 'study run FILE OPTIONS', not '${1:-}'" >&2
    exit 2
    ;;
esac
