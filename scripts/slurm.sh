#!/usr/bin/env bash
# levelfield on a SLURM cluster. Submit from the repository, after `make quickstart` or `make test` has set up .venv there.
#
# One training on several nodes, a task for each GPU; the loss sees the batch of all GPUs together:
#   sbatch --nodes=2 --gpus-per-node=4 --ntasks-per-node=4 scripts/slurm.sh \
#     --config configs/data/grocery_store.yaml --data.root DIR --model.loss ArcFaceLoss --data.batch_size 512
#
# A study on one GPU, its jobs one after the other:
#   sbatch --nodes=1 --gpus-per-node=1 --ntasks-per-node=1 scripts/slurm.sh \
#     study run configs/study/grocery_quick.yaml --data.root DIR
#
# 90 seconds before the time limit SLURM signals levelfield, which writes its last state and requeues the job: it goes on
# where it was (docs/fits.md). A preempted job does the same. `fit` before the options may be given or left out.
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
#SBATCH --signal=USR1@90
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}"
export PATH="$PWD/.venv/bin:$PATH"
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun no longer takes it from the job by itself

case "${1:-}" in
  --*) set -- fit "$@" ;;
esac
case "${1:-}" in
  fit)
    shift
    # --wait: a task that fails alone (no room on the disk) ends the others, which would wait for it.
    srun --wait=300 levelfield fit --config configs/trainer/gpus.yaml \
      --trainer.num_nodes "$SLURM_JOB_NUM_NODES" --trainer.devices "$SLURM_NTASKS_PER_NODE" "$@"
    ;;
  study)
    srun --nodes=1 --ntasks=1 levelfield "$@" --trainer.accelerator gpu --trainer.devices 1
    ;;
  *)
    echo "scripts/slurm.sh: give OPTIONS of fit or 'study run FILE OPTIONS', not '${1:-}'" >&2
    exit 2
    ;;
esac
