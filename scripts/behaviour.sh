#!/usr/bin/env bash
# Whether the code of COMMIT (HEAD) and of this checkout give the same scores, embeddings and weights, bit by bit:
#   scripts/behaviour.sh [COMMIT]    # prints what differs, and exits with 1 if something does
# Both compute on this machine, one after the other, as numbers depend on the processor.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
mkdir "$folder/commit" "$folder/before" "$folder/now"
git -C "$here" archive "${1:-HEAD}" | tar --extract --directory "$folder/commit"

levelfield() { "$python" -m levelfield "$@" >&2; }

compute() {
  local short="--data.steps_per_epoch 4 --trainer.max_epochs 1 --trainer.accelerator cpu"
  short+=" --model.freeze_batch_norm false"
  "$python" -c 'from pathlib import Path; from own_images import square_folders; square_folders(Path("images"))'
  for number in {0..99}; do echo "class $((number % 20)) number $number,$((number % 20))"; done >texts.csv
  sed -i '1i text,label' texts.csv
  levelfield study run smoke --output smoke --executor.workers 1
  levelfield fit --config data/glyphs --data.dataset.num_classes 24 --config trunk/tiny $short \
    --model.loss MultiSimilarityLoss
  levelfield predict --ckpt_path outputs/fit/*/0/best.ckpt --data images --output images.safetensors
  levelfield fit --config data/own_texts --data.dataset.table texts.csv --config trunk/tiny_text $short \
    --model.loss ArcFaceLoss --name texts
  levelfield predict --ckpt_path outputs/fit/texts/0/best.ckpt --data texts.csv --output texts.safetensors
  levelfield compare images --trunk trunk/tiny --output compared --data.transforms.crop_size 32 \
    --data.transforms.resize 32 --data.steps_per_epoch 1
  "$python" - <<'END' # only the tensors: the files also have versions, times and paths
import hashlib, pathlib, torch
from safetensors.torch import load_file

for path in sorted(pathlib.Path().rglob("*")):
    if path.name == "best.ckpt" or path.suffix == ".safetensors":
        stored = load_file(path) if path.suffix != ".ckpt" else torch.load(path, "cpu", weights_only=True)["state_dict"]
        content = b"".join(each.numpy().tobytes() for each in stored.values() if isinstance(each, torch.Tensor))
        print(path, hashlib.sha256(content).hexdigest())
    elif path.name == "results.csv":
        print(path, hashlib.sha256(path.read_bytes()).hexdigest())
END
}

for state in "before $folder/commit" "now $here"; do
  read -r name code <<<"$state"
  export PYTHONPATH=$code/src:$code:$here/tests LEVELFIELD_CACHE=$folder/$name/cache
  export OMP_NUM_THREADS=1 WANDB_MODE=disabled
  (cd "$folder/$name" && compute) >"$folder/$name.txt"
done
diff "$folder/before.txt" "$folder/now.txt"
