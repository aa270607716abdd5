"""What a GPU does, in ten parts from waits to `levelfield compare`, next to tuned loops and other libraries.

    python benchmarks/gpu.py                            # 6 minutes on one H100; no network, random weights
    python benchmarks/gpu.py --parts training losses    # only these parts
    python benchmarks/gpu.py --device cpu               # all parts in miniature, two minutes: do they run?

Each part runs in its own process with its share of `--minutes` and writes its tables row by row. A part that fails or
runs out of time says so and keeps its rows, and the next part starts. The command prints all tables and writes them to
`--output`. Contenders of a table take turns, and a number is the least of its turns.
"""

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_clock import Part, Table, by_turns, milliseconds, per_second
from gpu_fits import EMBEDDING_SIZE, compile_one, input_path, made_images, training, validation, waits
from torch import Tensor
from torch.nn.functional import normalize

GRACE = 8  # seconds after its share until a part is stopped


def gather(part: Part) -> None:
    """Whether gathered embeddings of one process, and their gradient, are what one process has."""
    import torch.distributed as dist
    from torch.distributed.nn.functional import all_gather

    backend = "gloo" if part.small else "nccl"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        local = torch.randn(512, EMBEDDING_SIZE, device=part.device, requires_grad=True)
        weights = torch.randn_like(local)
        gathered = torch.cat(all_gather(local))
        (gathered * weights).sum().backward()
        title = "`torch.distributed.nn.functional.all_gather` of one process"
        table = Table(part.file, title, "backend", "values are the same", "gradient is the same")
        table.row(backend, torch.equal(gathered, local), local.grad is not None and torch.equal(local.grad, weights))
        dist.destroy_process_group()


def scoring(part: Part) -> None:
    """The scores of a study's test samples: four folds, and their embeddings together."""
    from retrieval import embedding_space

    from levelfield.study.test_scores import concatenate, score_samples

    items, classes, folds = (600, 100, 4) if part.small else (60_502, 11_316, 4)
    embeddings, labels = embedding_space(items, EMBEDDING_SIZE, classes)
    title = f"`score_samples` of {items:,} test samples of {classes:,} classes"
    table = Table(part.file, title, "where", "what", "s")

    def all_scores() -> None:
        there = [embeddings.to(part.device)] * folds
        for each in (*there, concatenate(there)):
            score_samples(each, labels.to(part.device), None)

    what = f"{folds} x {EMBEDDING_SIZE} + {folds * EMBEDDING_SIZE} numbers"
    with suppress(Exception):  # the next call says which
        score_samples(embeddings[:200].to(part.device), (labels[:200] // 2).to(part.device), None)  # warms up
    table.row(part.device.type, what, by_turns(part, {"": lambda: part.seconds(all_scores)})[""])
    torch.set_num_threads(1)
    one = by_turns(part, {"": lambda: part.seconds(lambda: score_samples(embeddings, labels, None))}, rounds=1)
    table.row("one CPU thread", f"1 x {EMBEDDING_SIZE} numbers", one[""])


def retrieval(part: Part) -> None:
    """Exact scores, and neighbours."""
    from retrieval import NEIGHBOR_METRICS, SIZES, bare_product, embedding_space

    from levelfield.metrics import retrieval_metrics
    from levelfield.metrics.nearest import nearest

    sop, million = ((600, 32, 100), (2_000, 32, 400)) if part.small else (SIZES["sop"], SIZES["million"])
    queries, asked, neighbours = (200, 100, 16) if part.small else (100_000, 10_000, 16)
    table = Table(part.file, "Retrieval", "items x numbers", "what", "s", "peak MiB", "MAP@R")

    def rows(runs: Mapping[str, Callable[[], Any]], points: Tensor, rounds: int) -> None:
        peaks: dict[str, str] = {}
        scores: dict[str, str] = {}

        def run(name: str) -> float:
            def call() -> None:
                result = runs[name]()
                scores[name] = f"{result['map_at_r']:.5f}" if isinstance(result, dict) else ""

            with part.peak(peaks, name):
                return part.seconds(call)

        for name, seconds in by_turns(part, {name: partial(run, name) for name in runs}, rounds).items():
            shape = " x ".join(f"{n:,}" for n in points.shape)
            table.row(shape, name, seconds, peaks.get(name, ""), scores.get(name, ""))

    embeddings, labels = (each.to(part.device) for each in embedding_space(*sop))
    scored = partial(retrieval_metrics, embeddings, labels)
    runs = {
        "bare product": partial(bare_product, embeddings),
        "MAP@R, RP, P@1, R@k": partial(scored, metrics=NEIGHBOR_METRICS),
        "all with MAP and MRR": scored,
    }
    rows(runs, embeddings, rounds=3)
    embeddings, labels = (each.to(part.device) for each in embedding_space(*million))
    scored = partial(retrieval_metrics, embeddings, labels, metrics=NEIGHBOR_METRICS, num_queries=queries)
    first = embeddings[:asked]
    runs = {
        f"bare product of {asked:,} queries": lambda: [
            float((each @ embeddings.T)[0, 0]) for each in first.split(1024)
        ],
        f"{neighbours} nearest of {asked:,} queries": partial(
            nearest, first, embeddings, neighbours, torch.arange(asked, device=part.device), memory_budget=2**33
        ),
        f"MAP@R, RP, P@1, R@k of {queries:,} queries, 400 MiB": scored,
        f"MAP@R, RP, P@1, R@k of {queries:,} queries, 8 GiB": partial(scored, memory_budget=2**33),
    }
    rows(runs, embeddings, rounds=1)


def losses(part: Part) -> None:
    """Six kinds of losses with and without deterministic operations, next to pytorch-metric-learning."""
    from losses import CASES, DIM, SAMPLES_PER_CLASS, batch, build, floor

    kinds = ("Contrastive", "TripletMargin", "NTXent", "MultiSimilarity", "ArcFace", "FastAP")
    columns = ("loss", "N", "ours", "deterministic", "peer", "similarities alone", "MiB", "MiB, deterministic")
    table = Table(part.file, f"Losses, forward and backward, D = {DIM}, milliseconds", *columns)

    def run(kind: str, mib: dict[str, str], loss: Callable[..., Tensor], points: list[Tensor]) -> float:
        def step() -> None:
            points[0].grad = None
            loss(*points).backward()

        torch.use_deterministic_algorithms(kind == "deterministic", warn_only=True)
        with part.peak(mib, kind):
            return milliseconds(part, step)

    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # as in a fit
    for n in (16, 32) if part.small else (512, 2048, 8192):
        for case in (case for case in CASES if case.name.removesuffix("Loss") in kinds):
            name, mib, classes = case.name.removesuffix("Loss"), dict[str, str](), n // SAMPLES_PER_CLASS
            if not part.has(3):
                table.row(name, n, "no time left")
                continue
            points = [each.detach().to(part.device) for each in batch(n)]
            points[0].requires_grad_()
            loss, peer = (each if each is None else each.to(part.device) for each in build(case, n, most=40 * 2**30))
            weights = torch.randn(classes, DIM, device=part.device, requires_grad=True)
            compared = {"ours": loss, "deterministic": loss, "peer": peer, "similarities": floor(case.kind, weights)}
            runs = {kind: partial(run, kind, mib, each, points) for kind, each in compared.items() if each is not None}
            found = dict.fromkeys(compared, "-") | by_turns(part, runs)
            table.row(name, n, *found.values(), mib.get("ours", ""), mib.get("deterministic", ""))
            del loss, peer, compared, runs
            part.free()


def text(part: Part) -> None:
    """Training steps of a text encoder of MiniLM's size: texts, kept ids, and ids on the device in a bare loop."""
    from levelfield.losses import NTXentLoss
    from levelfield.models import TransformersTrunk
    from levelfield.models.text import pooled

    size, length, words = (8, 16, 200) if part.small else (128, 256, 30_000)
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    if part.small:
        shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = {"model_type": "bert", "vocab_size": words + 4, "max_position_embeddings": 512, **shape}
    trunk = TransformersTrunk("made", weights=None, config=config, max_length=length)
    trunk.set_extra_state(made_tokenizer(words))
    trunk.to(part.device)
    draw = torch.Generator().manual_seed(0)
    drawn = torch.randint(words, (size, length - 2), generator=draw).tolist()
    texts = [" ".join(map(word, row)) for row in drawn]
    ids_NT = trunk.padded([trunk.token_ids(each) for each in texts])[0].to(part.device)
    labels, loss = torch.arange(size, device=part.device) // 4, NTXentLoss()
    adamw = torch.optim.AdamW(trunk.parameters(), lr=1e-5, fused=True)

    def step(features: Callable[[], Tensor]) -> None:
        with torch.autocast(part.device.type, torch.bfloat16):
            found = features()
        loss(normalize(found.float()), labels).backward()
        adamw.step()
        adamw.zero_grad()

    def first_epoch() -> Tensor:
        trunk._kept.clear()
        return trunk(texts)

    def bare() -> Tensor:
        mask_NT = torch.ones_like(ids_NT)
        return pooled(trunk.model(input_ids=ids_NT, attention_mask=mask_NT).last_hidden_state, mask_NT, "mean")

    kinds = {"texts of the first epoch": first_epoch, "later, ids kept": lambda: trunk(texts)}
    kinds["ids on the device, bare"] = bare
    runs = {name: partial(milliseconds, part, partial(step, kind), 0.7) for name, kind in kinds.items()}
    title = f"Training steps of a text encoder, {size} texts of {length} tokens, bfloat16, fused AdamW"
    table = Table(part.file, title, "input", "ms a step", "texts/s")
    for name, milli in by_turns(part, runs).items():
        table.row(name, milli, per_second(size, milli))


def word(number: int) -> str:
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))


def made_tokenizer(words: int) -> str:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    known = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(word, range(words)))
    tokenizer = Tokenizer(models.WordPiece({token: number for number, token in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer.to_str()


# What `levelfield compare` prints when a phase begins.
PHASES = {"imports, measures, plans": "", "starts": "timing:", "trains": "[1/", "tests": "testing"}


def compare(part: Part) -> None:
    """`levelfield compare` on a folder of images, until the time is over: seconds and use of the GPU by phase."""
    trunk, images = ("test_resnet", (16, 6, 64, 48)) if part.small else ("tf_efficientnet_lite0", (48, 8, 500, 375))
    lasted, busy, used = Counter[str](), defaultdict[str, list[float]](list), 0.0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made_images(Path(folder, "images"), *images, different=images[0] * images[1])
        kind = f"{{class_path: levelfield.models.TimmTrunk, init_args: {{name: {trunk}, weights: null}}}}"
        Path(folder, "trunk.yaml").write_text(f"model: {{trunk: {kind}}}")  # random weights, no download
        words = ["compare", "images", "--trunk", "trunk.yaml", "--minutes", "0.8", "--executor.workers", "4"]
        here = os.environ | {"LEVELFIELD_CACHE": str(Path(folder, "cache")), "PYTHONUNBUFFERED": "1"}
        log = Path(folder, "log.txt")
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "levelfield", *words], cwd=folder, env=here, stdout=file, stderr=file
            )
        begin = last = time.perf_counter()
        while process.poll() is None and part.has(3) and not (part.small and last - begin > 15):
            time.sleep(0.25)
            phase = [name for name, sign in PHASES.items() if sign in log.read_text(errors="replace")][-1]
            lasted[phase] += time.perf_counter() - last
            last = time.perf_counter()
            if not part.small:
                busy[phase].append(torch.cuda.utilization())
                free, total = torch.cuda.mem_get_info()
                used = max(used, (total - free) / 2**20)
        end = "stopped" if process.poll() is None else f"ended with {process.returncode}"
        process.kill()
        process.wait()
        written = log.read_text(errors="replace")
    title = f"`levelfield {' '.join(words)}`, {trunk}, {images[0] * images[1]} images, {end} after {last - begin:.0f} s"
    table = Table(part.file, title, "phase", "s", "GPU busy, %")
    for phase, seconds in lasted.items():
        table.row(phase, seconds, sum(busy[phase]) / len(busy[phase]) if busy[phase] else "-")
    table.row("most GPU memory, MiB, 500 of it here", f"{used:,.0f}")
    for line in written.splitlines():
        if line.startswith(("images:", "timing:")):
            table.row(f"plan: {line}")
    if process.returncode > 0:
        raise SystemExit(written[-1500:])


# Each part, and its seconds on an H100 with 16 cores. What a part leaves goes to the parts after it.
PARTS: dict[str, tuple[Callable[[Part], None], int]] = {
    "waits": (waits, 9), "gather": (gather, 5), "validation": (validation, 18), "scoring": (scoring, 12),
    "retrieval": (retrieval, 17), "losses": (losses, 26), "text": (text, 9), "training": (training, 120),
    "input": (input_path, 70), "compare": (compare, 52),
}  # fmt: skip


class PartProcess:
    """A part in its own process, which imports and then waits for its turn."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options, self.folder = name, options, tempfile.TemporaryDirectory()
        self.table, self.log = Path(self.folder.name, "table.md"), Path(self.folder.name, "log.txt")
        command = [sys.executable, __file__, "--part", name, "--device", options.device, "--cores", str(options.cores)]
        command += ["--output", str(self.table)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True
            )

    def wait_for_imports(self) -> None:
        while not self.table.exists() and self.process.poll() is None:
            time.sleep(0.02)

    def tables(self, seconds: float) -> str:
        """Run the part and return what it wrote."""
        begin, failure = time.perf_counter(), ""
        limit = seconds + GRACE if self.options.device == "cuda" else 600
        try:
            self.process.communicate(f"{seconds}\n", timeout=limit)
            if self.process.returncode:
                failure = f"ended with {self.process.returncode}"
        except subprocess.TimeoutExpired:
            failure = f"was stopped after {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):  # with the processes that it started
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        written = self.table.read_text() if self.table.exists() else ""
        text = f"\n## {self.name.capitalize()} ({time.perf_counter() - begin:.0f} s)\n{written}"
        if failure:
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            text += f"\nThis part {failure}:\n\n```\n{last}\n```\n"
        self.folder.cleanup()
        return text


def run_part(options: argparse.Namespace) -> None:
    """What the process of a part does: imports, then waits for its seconds."""
    import levelfield.data.datamodule
    import levelfield.models
    import levelfield.training.learner  # noqa: F401

    warnings.simplefilter("ignore")
    if options.ahead:
        compile_one(Part("cuda", 600, options.output, options.cores), *options.ahead)
        return
    options.output.touch()
    if seconds := sys.stdin.readline():  # empty if the benchmark was stopped
        PARTS[options.part][0](Part(options.device, float(seconds), options.output, options.cores))


def machine(device: str, cores: int) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    cuda = f", CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}" if device == "cuda" else ""
    return f"{name}, {cores} cores, torch {torch.__version__}{cuda}, Python {platform.python_version()}"


def main() -> None:
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=5.8, help="for all parts together")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="the most loader processes")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/gpu.md"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--ahead", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        run_part(options)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device: --device cpu runs the miniature")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the part, too
    options.output.parent.mkdir(parents=True, exist_ok=True)
    text = f"# GPU benchmark\n\n{machine(options.device, options.cores)}\n"
    parts = [PartProcess(name, options) for name in options.parts]
    for part in parts:  # else these would import beside the first rows of the part before
        part.wait_for_imports()
    for number, part in enumerate(parts):
        share = PARTS[part.name][1] / sum(PARTS[name][1] for name in options.parts[number:])
        text += part.tables(max(share * (begin + 60 * options.minutes - time.perf_counter()), 5))
        options.output.write_text(text)
    print(f"{text}\n{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
