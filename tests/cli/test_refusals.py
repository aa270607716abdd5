"""What a user gets wrong is one line that names it: a door, the words behind it, and what the line must say."""

import re
import shlex
import shutil
from itertools import product
from pathlib import Path

import pytest
import yaml
from PIL import Image
from refused import refused, refuses, succeeded
from tiny_fit import TINY

from levelfield.cli.commands import EVALUATIONS
from levelfield.cli.main import run as command_line
from levelfield.core.configuration import set_dotted

GLYPHS = ["--config", "data/glyphs.yaml", "--config", "trunk/tiny.yaml"]
ARCFACE = ["--model.loss", "ArcFaceLoss"]
FILES = {
    "empty.yaml": "model: {los: {}}\n",
    "trainer.yaml": "seed_everything: 1\ntrainer: {max_epoch: 2}\n",
    "argument.yaml": "model: {loss: {class_path: ArcFaceLoss, init_args: {magin: 2}}}\n",
    "beside.yaml": "model: {loss: {class_path: ArcFaceLoss, margin: 2}}\n",
    "learner.yaml": "model: {learner: 3}\n",
    "seed.yaml": "seed_everything: many\n",
    "twice.yaml": "model: {loss: ArcFaceLoss}\ndata: {fold: 0}\nmodel: {embedding_size: 8}\n",
    "no.yaml": "model: [\n",
    "away.yaml": "{extends: toy, name: ../elsewhere}",
    "unnamed.yaml": "{extends: toy, name: ''}",
    "notes.txt": "none",
    "notes.md": "none",
    "torn/0.png": "no image",
    "missing.csv": "path\nbirds/0.png\nbirds/9.png\n",
    "words.csv": "text,label\nhello,a\n",
    "one.csv": "path,label\na.png,a\nb.png,a\n",
    "groups.csv": "path,label,group\n" + "".join(f"{n}.png,c{n // 2},g{n // 2}\n" for n in range(8)),
    **{f"{of}.csv": f"path,label,role\n0,a,query\n1,a,query\n2,b,{of}\n3,b,{of}\n" for of in ("gallery", "query")},
}
FIT = """
--modle.loss x | --modle.loss | '--model.loss'
--nmae x | --nmae | '--name'
--model.emb 4 | --model.emb
--trainer.max_epoch 4 | --trainer.max_epoch | '--trainer.max_epochs'
--model.loss.magin 20 | --model.loss | 'magin' | 'margin'
--trainer.callbacks+ EarlyStopping --trainer.callbacks.monitr x | --trainer.callbacks | 'monitor'
--config empty.yaml | model.los | '--model.loss'
--config=trainer.yaml | trainer.max_epoch | '--trainer.max_epochs'
--config learner.yaml | --model 3
--config nothing.yaml | nothing.yaml
--model.loss ArcFaceLos | --model.loss | 'ArcFaceLoss'
--model.trunk.adapter lora | --model.trunk.adapter | 'LoRA'
--model.loss my_los.MyLoss | --model.loss | 'my_los'
--model my_learner.Mine | --model my_learner.Mine | 'my_learner'
--config data/glyfs.yaml | --config | 'data/glyfs.yaml' | 'data/glyphs.yaml'
--trainer trainr.yaml | trainr.yaml
--model.trunk resnet50 | --model.trunk | --config trunk/resnet50.yaml
--model.trunk resnet101 | --model.trunk | --model.trunk.name
--data few | --data few | --config data/image_folder.yaml --data.dataset.folder few
--data few.csv | --data few.csv | --data.dataset.table few.csv
--epochs 3 | --epochs | --trainer.max_epochs
--lr 0.1 | --lr | --model.trunk_lr | --model.embedder_lr | --model.loss_lr
--batch-size=3 | --batch-size | --data.batch_size
--model.gradient_checkpointing true | --trainer.callbacks+ GradientCheckpointing
--model.loss collections.Counter | --model.loss | 'collections.Counter' | Module
--model.embedding_size many | --model.embedding_size many | int
--model.loss_lr= | --model.loss_lr | float
--trainer.max_epochs 1.5 | --trainer.max_epochs 1.5 | int
--config seed.yaml | --seed_everything many | int
--model.distance cosin | --model.distance cosin | 'cosine'
--model.embedding_size 0 | --model.embedding_size 0 | 1
--data.fold 9 | --data.fold 9 | 3
--data.sampler ShuffleBatchSampler | 'ShuffledBatchSampler'
--model.loss | --model.loss
--data.dataset ImageTable | --data.dataset.table
--data.dataset ImageFolder --data.dataset.num_classes 3 | 'num_classes'
--model.loss.num_classes 3 | --model.loss.num_classes
--model.seed 3 | --model.seed | --seed_everything
--config twice.yaml | twice.yaml | line 3 | 'model'
--config no.yaml | no.yaml | YAML
--output /proc/nowhere | /proc/nowhere
"""
# What Lightning, torch and their loggers refuse when they are built or in the fit.
BUILT = f"""
--name {"long" * 80} | shorter name
--data.dataset.num_classes 12 | num_folds
--data.samples_per_class 5 | samples_per_class
--model.trunk.weights none.pth | none.pth
--ckpt_path nothing.ckpt | nothing.ckpt
--trainer.precision 17 | precision
--trainer.strategy dpp | strategy='dpp'
--trainer.strategy ddp_spawn --trainer.devices 2 | --trainer.strategy ddp_spawn
--trainer.accelerator gpu | --trainer.accelerator gpu
--name a/../../b | --name a/../../b
--checkpoint_seconds -3 | --checkpoint_seconds -3
--resume --trainer.enable_checkpointing false | --resume
--trainer.callbacks EarlyStopping --trainer.callbacks.monitor x | --trainer.callbacks
--trainer.callbacks LearningRateFinder | --model.trunk_lr
--trainer.callbacks BatchSizeFinder | --data.batch_size
--trainer.callbacks BackboneFinetuning | HeadFirst
--trainer.strategy ddp_notebook | --trainer.strategy ddp_notebook
--trainer.precision transformer-engine | transformer_engine
--trainer.barebones true | --trainer | barebones
--trainer.val_check_interval 100 | --trainer.val_check_interval
--config logger/wandb --trainer.logger.log_model true | log_model
--trainer.logger MLFlowLogger | mlflow
--model.lr_scheduler torch.optim.lr_scheduler.ReduceLROnPlateau | --model.lr_scheduler.mode
--model.optimizer SparseAdam | --model.optimizer
--data.fold none --trainer.max_epochs -1 | --trainer.max_epochs
"""
# Keys, and the numbers out of their range.
NUMBERS = """
model.embedder_lr: -1 .nan .inf nan fast
model.trunk_lr model.loss_lr model.weight_decay model.loss_weight_decay: -0.1
model.embedding_size model.num_features model.loss.scale: 0
model.loss.margin: [1]
data.batch_size data.samples_per_class data.steps_per_epoch data.eval_batch_size: 0
data.num_workers data.fold data.num_folds data.dataset.num_classes: -1
data.batch_size data.fold data.features data.transforms.crop_size: 1.5
data.transforms.scale: [0.5]
trainer.accumulate_grad_batches trainer.check_val_every_n_epoch trainer.devices: 0
trainer.num_nodes trainer.val_check_interval: 0
trainer.max_epochs trainer.max_steps trainer.min_epochs trainer.limit_train_batches: -2
trainer.log_every_n_steps trainer.num_sanity_val_steps trainer.fast_dev_run: -2
trainer.gradient_clip_val: -1 .nan
seed_everything: -1 99999999999 nan
"""
LEVELFIELD = """
fit --config data/glyphs.yaml --config trunk/tiny.yaml | --model.loss is required
fit --model.loss ArcFaceLoss | --data.dataset is required
fti | 'fti' | 'fit'
train | 'train' | levelfield fit
list | 'list' | levelfield data list
test | --ckpt_path
validate --batch_size 2 | --batch_size | --data.eval_batch_size
score --checkpoint x | --checkpoint | --ckpt_path
fit --config data/glyphs.yaml --config argument.yaml | --model.loss | 'magin' | 'margin'
fit --config data/glyphs.yaml --config beside.yaml | ArcFaceLoss | 'margin' | init_args
fit --modle.loss x --print_config | --modle.loss | '--model.loss'
data verify omnigolt | 'omniglot'
data verfy | 'verify'
data list --rot x | '--root'
data list --root /nowhere | --root /nowhere
data verify omniglot --archive x | --archive | verify
data prepare cub200 sop --archive x | --archive | NAME
data prepare cub200 --archve x | '--archive'
compare nosuch | nosuch: no such file or folder
compare few --loss x | --loss | --add-method
compare notes.txt | notes.txt
compare --minutes 2 | PATH
compare x --minutes soon | --minutes
compare x --minuts 2 | '--minutes'
compare x --model.trunk mine.Trunk | --model.trunk
compare x --folds 2 | --folds is an option of study run
compare x --search.trials 2 | --search.trials
compare x --data.dataset.folder y | --data.dataset.folder
study rnu toy.yaml | 'run'
study run | FILE
study run nosuch | 'nosuch' | quickstart | smoke | laptop/glyphs
study run quickstrat | 'quickstrat' | 'quickstart'
study run quickstart --workers 2 | --workers | --executor.workers
study run tyo.yaml | 'toy'
study run toy --outptu x | '--output'
study run toy --output notes.txt | notes.txt
study run toy --output /sys/study | /sys/study
study run toy --search.trails 1 | 'trials'
study run toy --search.sampler gpp | search.sampler | 'gp'
study run toy --executor.worker 2 | '--executor.workers'
study run toy --executor.workers 0 | --executor.workers 0
study run toy --executor.workers two | --executor.workers two: | int, 'auto'
study run away.yaml | name: | --output
study run unnamed.yaml | name: | --output
study run toy --runs many | runs must be a whole number | 'many'
study run toy --rusn 1 | '--runs'
study run toy --data.root | --data.root
study run toy --data.dataset.num_clases 5 | num_clases | 'num_classes'
study run toy --model.loss_lr 0.3 | --model.loss_lr: arcface
study run toy --model.loss.margin 0.3 | --model.loss.margin: arcface
study run toy --search.trials 0 --search.sampler tpe | --search.sampler
study run toy --trainer.enable_checkpointing false | trainer.enable_checkpointing
study run toy --data.samples_per_class 5 | samples_per_class 5
study status toy --output notes.txt/within | notes.txt
study status toy | outputs/toy
"""
# With the checkpoint of a fit.
USED = """
predict --data nowhere | nowhere
predict --data few | no images in
predict --data notes.md | notes.md
predict --data missing.csv | birds/9.png | No such file
predict --data words.csv | no column path | images
predict --data birds --output x.csv | x.csv | .parquet or .safetensors
predict --data birds --output notes.txt/e.parquet | File exists | move it away
predict --data birds --device gpu7 | --device gpu7
predict --data birds --ckpt_path few | no checkpoint in
predict --data birds --ckpt_path notes.txt | cannot read checkpoint
score | needs --data
score --data grocery_stroe | no data set 'grocery_stroe' | grocery_store
score --data one.csv | 1 classes have 2 or more samples, 2 must
score --data groups.csv | 0 classes | in at least 2 groups
score --data gallery.csv | the gallery has 1 classes | role
score --data query.csv | the gallery has 0 classes | role
score --data words.csv | holds texts | takes images
score --data few --output x | --output is an option of | predict --data
search birds | needs --query
search birds --query no.png | no.png is not there
search birds --query birds | is a folder | image file
search birds --query birds/0.png --top 0 | --top 0: give 1 or more
search birds --query birds/0.png --output a.html | --output a.html | .png
search birds --query torn/0.png | torn/0.png is not an image
search torn --query birds/0.png | torn/0.png | --skip-broken
search birds --query birds/0.png --trunk minilm | --trunk minilm: a checkpoint has its own
"""
# Options that contradict a checkpoint, each by one of the three commands.
CONTRADICTIONS = """
--data.fold 1, --data.dataset Omniglot, --data.batch_size 64, --data.transforms.crop_size 40, --model.loss.margin 30,
--model.loss ContrastiveLoss, --model.embedding_size 64, --model.trunk.name resnet10t, --model.regularizer KoLeo,
--model.miner MultiSimilarityMiner, --output elsewhere, --output=x, --trainer.max_epochs 7, --trainer.acelerator cpu,
--trainer.logger CSVLogger, --trainer.logger.init_args.name=x, --checkpoint_seconds 5, --seed_everything 5,
--model.trunk.weights other.pth, --model.trunk.weights=null, --ckpt_path other.ckpt, --reopen-tst why,
--trainer.limit_train_batches=3
"""


def rows(text: str) -> list[tuple[list[str], list[str]]]:
    lines = [line.split(" | ") for line in text.strip().splitlines()]
    return [(shlex.split(words), keys) for words, *keys in lines]


def numbers() -> list[tuple[list[str], list[str]]]:
    pairs = [line.split(": ") for line in NUMBERS.strip().splitlines()]
    each = [pair for keys, bad in pairs for pair in product(keys.split(), bad.split())]
    return [([f"--{key}", bad], [key.rpartition(".")[2]]) for key, bad in each]


IN_THE_FIT = ["fit", *TINY, *ARCFACE]
TABLE = [
    *((["fit", *GLYPHS, *ARCFACE], *row) for row in rows(FIT)),
    *((IN_THE_FIT, *row) for row in [*rows(BUILT), *numbers()]),
    *(([], *row) for row in rows(LEVELFIELD)),
]


@pytest.fixture(autouse=True)
def there(tmp_path: Path, toy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    (tmp_path / "torn").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "few").mkdir()
    (tmp_path / "configs/study").mkdir(parents=True)
    shutil.copy(toy_file, "configs/study/toy.yaml")


@pytest.mark.parametrize(("door", "words", "keys"), TABLE, ids=[" ".join(words) for _, words, _ in TABLE])
def test_a_mistake_is_one_line_that_names_it_and_nothing_is_begun(door, words, keys, run, tmp_path):
    complaint = refused(run(*door, *words), *keys)
    assert not {"NestedArg", "<class"} & {*complaint.replace("(", " ").split()}, complaint
    if door != IN_THE_FIT:  # what is found in the fit leaves its configuration
        assert [path for path in tmp_path.glob("outputs/*/**/*") if path.is_file() and path.name[0] != "."] == []
    assert not list(tmp_path.rglob("best.ckpt"))
    assert Path("notes.txt").read_text() == "none"


@pytest.mark.parametrize(("words", "keys"), rows(USED))
def test_a_mistake_with_a_checkpoint_is_one_line_that_names_it(words, keys, fitted, run, tmp_path):
    (tmp_path / "birds").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "birds/0.png")
    refused(run(words[0], "--ckpt_path", fitted / "best.ckpt", *words[1:]), *keys)


@pytest.mark.parametrize(("number", "option"), [*enumerate(CONTRADICTIONS.replace("\n", " ").strip().split(", "))])
def test_what_contradicts_the_checkpoint_is_refused(fitted, run, number, option):
    key = re.match(r"--\w[\w-]*(\.\w+)?", option)[0]
    refused(run([*EVALUATIONS][number % 3], "--ckpt_path", fitted / "best.ckpt", *option.split()), key)
    assert not (fitted / "ledger.jsonl").exists()


def test_another_data_set_than_the_checkpoints_and_an_option_of_test_alone_are_refused(fitted, run):
    checkpoint = ("--ckpt_path", fitted / "best.ckpt")
    for command in EVALUATIONS:
        refused(run(command, *checkpoint, "--data.dataset.num_classes", "60"), "(train_classes)")
    for command, option in (("validate", "--reopen-test"), ("predict", "--reopen_test")):
        refused(run(command, *checkpoint, f"{option}=x"), option)
    refused(run("validate", *checkpoint, "--config", fitted / "config.yaml"), str(fitted / "best.ckpt"))
    refused(run("validate", *checkpoint, "--print_config"), "--print_config", "fit")


@pytest.mark.parametrize("command", ["status", "report", "verify", "archive"])
def test_a_studys_command_refuses_what_it_does_not_use(command):
    options = "runs=3 metrics=ami data.root=x trainer.max_epochs=3 search.trials=3 reopen-test=x executor=x from=x"
    flags = ["executor.workers=2", "recompute=x", "stop-here", "dry-run"]
    for option in [*options.split(), *flags]:
        key = rf"^--{option.partition('=')[0]} .*\b{command}\b"
        refuses(key, command_line, "study", [command, "smoke", f"--{option}"])


def test_a_configuration_is_printed_before_it_is_complete_and_is_a_file_for_config(run, tmp_path):
    printed = succeeded(run("fit", "--data.dataset", "ImageTable", "--data.root", "all", "--print_config"))
    found = yaml.safe_load(printed)
    assert (found["model"]["loss"], found["data"]["dataset"]["init_args"]["table"]) == (None, None)
    (tmp_path / "printed.yaml").write_text(printed)
    words = [*ARCFACE, "--data.dataset.table", "all.csv", "--print_config"]
    again = succeeded(run("fit", "--config", "printed.yaml", *words))
    assert yaml.safe_load(again)["data"] == set_dotted(found["data"], "dataset.table", "all.csv")


TORCHRUN = "RANK=0 LOCAL_RANK=0 GROUP_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=1 "
TORCHRUN += "TORCHELASTIC_RUN_ID=none MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
SBATCH = "SLURM_JOB_NAME=levelfield SLURM_JOB_ID=7 SLURM_NODELIST=node7 SLURM_NNODES=1 SLURM_NTASKS=2 "
SBATCH += "SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0"
SRUN = f"{SBATCH} SLURM_STEP_NUM_TASKS=2"
# The variables of a launcher, of which a later value counts, an option, and what the refusal says.
LAUNCHED = [
    (TORCHRUN, "--trainer.devices 3", "torchrun .* 2 .* 3"),
    (SRUN, "--trainer.devices 3", "srun .* 2 .* 3"),
    (f"{SRUN} SLURM_NNODES=2", "--trainer.devices 2", "srun .*--trainer.num_nodes 2"),
    (f"{TORCHRUN} LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE=2", "--trainer.devices 2", "torchrun .*--trainer.num_nodes 2"),
    (f"{SBATCH} SLURM_NTASKS=1 SLURM_NTASKS_PER_NODE=1", "--trainer.devices 8", "devices.* 1 of 8 .*SLURM_NTASKS"),
    (SBATCH, "--trainer.devices 2", "--trainer.devices.* 1 of 2 .* srun "),
    ("", "--trainer.num_nodes 2", "--trainer.num_nodes 2.* torchrun"),
]


@pytest.mark.parametrize(("environment", "words", "named"), LAUNCHED)
def test_numbers_that_contradict_the_launcher_are_one_line_before_anybody_is_awaited(
    environment, words, named, run, tmp_path, monkeypatch
):
    for variable in environment.split():
        monkeypatch.setenv(*variable.split("="))
    words = [*TINY, *ARCFACE, "--trainer.accelerator", "cpu", *words.split(), "--output", tmp_path]
    assert re.search(named, refused(run("fit", *words)))
    assert not any((tmp_path / "fit").glob("*/*")), "no folder is left"
