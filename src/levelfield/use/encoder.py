"""Embed any data with a checkpoint, its trunk and its evaluation transforms, or with a pretrained trunk alone."""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from levelfield.core.configuration import merge
from levelfield.core.errors import UserError
from levelfield.core.files import file_hash
from levelfield.core.processes import in_processes
from levelfield.core.terminal import say
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.loaders import batch_of, embedded_together, loader_processes
from levelfield.data.transforms import ImageTransforms
from levelfield.losses import ContrastiveLoss
from levelfield.models import IdentityEmbedder
from levelfield.study.test_scores import concatenate
from levelfield.training.checkpoint import built, one_line, read_checkpoint
from levelfield.training.embed import EmbeddedSet, TrunkExtractor
from levelfield.training.embed import embed as embed_batches
from levelfield.training.frozen_trunk import KEY as FROZEN_TRUNK
from levelfield.training.learner import MetricLearner
from levelfield.training.plain_module import adapted
from levelfield.training.settings import class_parser, instantiate, parse
from levelfield.use.samples import USUAL_TRUNK, Samples, read_trunk, record_labelled, samples_of

CHECKPOINT = "best.ckpt"
USUAL_TRANSFORMS = {"crop_size": 224, "resize": 256}


class Embedded(NamedTuple):
    """Embeddings of the samples that could be opened, in their order.

    Attributes:
        names: the name of each sample (`levelfield.use.samples.Samples`).
        labels: the class of each sample, if the data have labels.
        positions: the position of each sample in the data.
        left_out: for each missing sample, why it could not be opened.
    """

    embeddings: Float[Tensor, "samples embedding"]
    names: tuple[str, ...]
    labels: tuple[str, ...] | None
    positions: tuple[int, ...]
    left_out: tuple[str, ...] = ()


def embed(
    checkpoint: Any,
    data: Any,
    *,
    skip_broken: bool = False,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    trust: Iterable[str] = (),
    transforms: ImageTransforms | None = None,
    trunk: str | None = None,
) -> Embedded:
    """Embed any data, with or without labels.

    If the data have labels, the result has them too and can be scored, so the ledger of evaluations gets a line first.

    Args:
        checkpoint: the `best.ckpt` of a fit; the folder of a study's run, or a list of files, whose embeddings are
            concatenated; or an `Encoder`, which is loaded once for many calls. None takes a pretrained trunk alone.
        data: a folder, a table (CSV or Parquet, with a column `path` or `text`), an image, a `.txt` file with one text
            per line, or a list of files, Pillow images or texts.
        skip_broken: leave out images that cannot be opened.
        batch_size: samples at a time; None takes the batch size of the checkpoint.
        device: where to compute; None takes a GPU if there is one.
        trust: further modules or classes that the checkpoint may use (docs/security.md).
        transforms: required if the checkpoint was trained on your own loaders, because it has none then.
        trunk: without a checkpoint, a file of `configs/trunk`; None takes the usual one for images or texts.

    Raises:
        UserError: no checkpoint, no such data, or an image that cannot be opened.

    Example:
        embedded = levelfield.embed("outputs/fit/ImageFolder-ContrastiveLoss/0/best.ckpt", "my_images")
        untrained = levelfield.embed(None, "my_images")
        print(embedded.embeddings.shape, embedded.names[:3])
    """
    trunk = trunk_for(data, checkpoint, trunk)
    is_ready = isinstance(checkpoint, Encoder)
    encoder = checkpoint if is_ready else Encoder(checkpoint, device, trust, transforms, trunk)
    samples = encoder.samples(data)
    say(*(f"note: {note}" for note in samples.notes), file=sys.stderr)
    return encoder.embed(samples, skip_broken=skip_broken, batch_size=batch_size)


def trunk_for(data: Any, checkpoint: Any, trunk: str | None) -> str | None:
    """The trunk that embeds data without a checkpoint; None with one.

    Raises:
        UserError: both are given, or there are no such data.
    """
    if checkpoint is not None and trunk is not None:
        raise UserError(f"--trunk {trunk}: a checkpoint has its own; leave one of the two out")
    return trunk if trunk or checkpoint is not None else USUAL_TRUNK[samples_of(data, None, "--trunk").modality]


class Encoder:
    """A checkpoint, or several whose embeddings are concatenated, ready to embed.

    Args:
        checkpoint: a `best.ckpt`, the folder of a study's run with one for each fold, or a list of files.
        device: where to compute; None takes a GPU if there is one.
        trust: see `embed`.
        transforms: see `embed`.
        trunk: a file of `configs/trunk`, instead of a checkpoint (None); its embeddings are the normalized features.

    Attributes:
        module: samples -> embeddings.
        learners: one per checkpoint.
        transforms: the evaluation transforms of the checkpoint.
        modality: image or text; None if unknown.
        distance: the distance of its embeddings.
        checkpoints: the content of each file except tensors.
        hash: SHA-256 of each file.
        hashes: name of each file to its SHA-256.

    Raises:
        UserError: no checkpoint, or several that do not fit together.
    """

    transforms: Any
    hashes: dict[str, str]

    def __init__(
        self,
        checkpoint: Any,
        device: str | torch.device | None = None,
        trust: Iterable[str] = (),
        transforms: ImageTransforms | None = None,
        trunk: str | None = None,
    ) -> None:
        self.device = _usual_device(device)
        if trunk is None:
            self._read(checkpoint, tuple(trust))
        else:
            self._build(trunk)
        trunks = [getattr(learner, "trunk", None) for learner in self.learners]
        self.modality = _one([getattr(each, "modality", None) for each in trunks], self.origin, "trunks")
        self.transforms = transforms or self.transforms
        distance = _one([getattr(learner, "distance", "cosine") for learner in self.learners], self.origin, "distances")
        several = len(self.learners) > 1
        # Concatenated embeddings have unit length, so both rank like cosine.
        self.distance = "cosine" if several and distance in ("euclidean", "poincare") else distance
        shared = several and self._share_a_trunk()
        self.module: nn.Module = Concatenated(self.learners, shared) if several else self.learners[0]
        self.module.to(self.device).eval()
        self.hash = [*self.hashes.values()]

    def _read(self, checkpoint: Any, trust: tuple[str, ...]) -> None:
        self.paths = _files(checkpoint)
        self.origin = str(checkpoint) if isinstance(checkpoint, str | Path) else str(self.paths[0])
        read = [read_checkpoint(path) for path in self.paths]
        self.checkpoints = [{key: part for key, part in each.items() if key != "state_dict"} for each in read]
        loaded = [MetricLearner.load_from_checkpoint(path, trust=trust) for path in self.paths]
        self.learners = [cast(Any, adapted(learner)) for learner in loaded]
        described = [content.get("datamodule_hyper_parameters", {}).get("transforms") for content in self.checkpoints]
        _one(described, self.origin, "transforms")
        self.transforms = _transforms(self.checkpoints[0], self.paths[0], trust)
        named = [path.name if len(self.paths) == 1 else f"{path.parent.name}/{path.name}" for path in self.paths]
        self.hashes = dict(zip(named, map(file_hash, self.paths), strict=True))

    def _build(self, trunk: str) -> None:
        given = read_trunk(trunk)
        built_trunk = _parts(MetricLearner, "model", {"trunk": given["model"]["trunk"]}).trunk
        learner = MetricLearner(built_trunk, ContrastiveLoss(), IdentityEmbedder, built_trunk.num_features)
        self.origin, self.paths, self.checkpoints, self.learners = trunk, [], [{}], [learner]
        transforms = merge(USUAL_TRANSFORMS, given.get("data", {}).get("transforms", {}))
        self.transforms = _parts(MetricDataModule, "data", {"transforms": transforms}).transforms
        identity = dict(TrunkExtractor(built_trunk, self.device).identity)
        self.hashes = {Path(trunk).stem: sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()}

    def samples(self, data: Any) -> Samples:
        """The samples of `data` for this checkpoint."""
        return samples_of(data, self.modality, self.origin)

    def embed(
        self,
        samples: Samples,
        *,
        skip_broken: bool = False,
        batch_size: int | None = None,
        progress: Callable[[int, int], Any] | None = None,
        may_be_none: bool = False,
        by: str = "levelfield.embed",
    ) -> Embedded:
        """Embeddings of samples; see `levelfield.embed`. Labelled samples get a line in the ledger.

        Args:
            may_be_none: whether `skip_broken` may leave out all samples.
            by: the command, for the ledger.
        """
        on_gpu, transform = self.device.type == "cuda", None
        if samples.modality == "image":
            if self.transforms is None:
                raise UserError(
                    f"'{self.origin}' was trained on your own loaders and has no transforms: in Python, call "
                    "levelfield.embed(..., transforms=ImageTransforms(...))"
                )
            transform = self.transforms.evaluate()
        loader = DataLoader(
            Opened(samples.source, samples.keys, transform, skip_broken),
            batch_size=batch_size or self.batch_size,
            collate_fn=_batch,
            **in_processes(loader_processes("auto", samples.modality, on_gpu), on_gpu),
        )
        found: EmbeddedSet = embed_batches(self.module, loader, self.device, progress)
        if not torch.isfinite(found.embeddings).all():
            raise UserError(f"'{self.origin}' gives embeddings that are not finite; use another checkpoint")
        left_out = [_why_broken(samples.source, samples.keys[at]) for at in found.index[found.labels == 1].tolist()]
        if len(left_out) == len(samples.keys) and not may_be_none:
            raise UserError(f"none of the {len(left_out):,} images can be opened; the first: {left_out[0]}")
        kept = found.labels == 0
        places = tuple(found.index[kept].tolist())
        record_labelled(samples, by, self.hashes, places)
        labels = None if samples.labels is None else tuple(samples.labels[at] for at in places)
        names = tuple(samples.names[at] for at in places)
        return Embedded(found.embeddings[kept], names, labels, places, tuple(left_out))

    @property
    def batch_size(self) -> int:
        """Samples at a time, as in the checkpoint, because the batch affects the rounding of embeddings."""
        size = self.checkpoints[0].get("datamodule_hyper_parameters", {}).get("eval_batch_size")
        return embedded_together(size if isinstance(size, int) and size >= 1 else "auto", self.device.type == "cuda")

    def _share_a_trunk(self) -> bool:
        trunks = {content["levelfield"].get(FROZEN_TRUNK) for content in self.checkpoints}
        # One that is not frozen may have its own adapter.
        plain = all(type(each).forward is MetricLearner.forward and each.freeze_trunk for each in self.learners)
        return len(trunks) == 1 and None not in trunks and plain


class Concatenated(nn.Module):
    """Concatenates the unit vectors of several learners and normalizes the result, as in a study.

    Args:
        shared: whether their trunks are equal; the first then runs for all.
    """

    def __init__(self, learners: Sequence[Any], shared: bool) -> None:
        super().__init__()
        self.learners, self.shared = nn.ModuleList(learners), shared
        for learner in self.learners[1:] if shared else ():
            learner.trunk = learners[0].trunk

    def forward(self, samples: Any) -> Float[Tensor, "batch embedding"]:
        if not self.shared:
            return concatenate([learner(samples) for learner in self.learners])
        features = self.learners[0].trunk(samples)  # type: ignore[operator]
        return concatenate([learner.embed_features(features) for learner in self.learners])  # type: ignore[operator]


class Opened(Dataset[tuple[Any, int, int]]):
    """`opened[position] -> (sample, broken, position)`; a broken image (broken 1) is a white square.

    Raises:
        UserError: a sample that cannot be opened, unless `skip_broken`.
    """

    def __init__(
        self, source: Any, keys: Sequence[Any], transform: Callable[[Any], Any] | None, skip_broken: bool
    ) -> None:
        self.source, self.keys, self.transform, self.skip_broken = source, keys, transform, skip_broken

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, position: int) -> tuple[Any, int, int]:
        broken = 0
        try:
            sample = self.source.load(self.keys[position])
        except UserError as error:
            if not self.skip_broken:
                raise UserError(f"{error}; or skip such images with --skip-broken") from None
            sample, broken = Image.new("RGB", (256, 256), "white"), 1
        return sample if self.transform is None else self.transform(sample), broken, position


def _files(checkpoint: Any) -> list[Path]:
    """The files of a checkpoint: one file, a list, or one for each fold of a study's run."""
    if not isinstance(checkpoint, str | Path):
        return [Path(each) for each in checkpoint]
    folder = Path(checkpoint)
    if not folder.is_dir():
        return [folder]
    found = sorted(folder.glob(f"fold*/{CHECKPOINT}")) or sorted(folder.glob(CHECKPOINT))
    if not found:
        raise UserError(
            f"no checkpoint in '{checkpoint}': give a {CHECKPOINT}, or the folder of a study's run with "
            f"fold*/{CHECKPOINT}"
        )
    return found


def _usual_device(device: str | torch.device | None) -> torch.device:
    try:
        found = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"--device {device}: {reason}; give cpu or cuda") from None
    return found


def _transforms(checkpoint: dict[str, Any], origin: Path, trust: tuple[str, ...]) -> Any:
    """The transforms in a checkpoint; None after training on your own loaders."""
    if checkpoint["levelfield"].get("data") is None:
        return None
    given = checkpoint["datamodule_hyper_parameters"].get("transforms") or {}
    known = inspect.signature(ImageTransforms).parameters
    with one_line(origin):
        if "class_path" in given:
            return built(MetricDataModule, "data", {"transforms": given}, trust)["transforms"]
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if k in known}
        return ImageTransforms(**plain)


def _parts(kind: type, section: str, given: Any) -> Any:
    """Some arguments of a class, from a configuration."""
    parser = class_parser(kind, section, instantiate=False)
    return instantiate(parser, parse(parser, {section: given}, complete=False))[section]


def _one(given: Sequence[Any], origin: object, what: str) -> Any:
    """The value that all checkpoints must share."""
    if any(each != given[0] for each in given):
        raise UserError(f"the checkpoints of {origin} have different {what}; give checkpoints of one run")
    return given[0]


def _batch(samples: list[tuple[Any, int, int]]) -> list[Any]:
    contents, broken, positions = zip(*samples, strict=True)
    return [batch_of(contents, as_bytes=True), torch.tensor(broken), torch.tensor(positions)]


def _why_broken(source: Any, key: Any) -> str:
    try:
        source.load(key)
    except UserError as error:
        return str(error)
    return f"{key} could not be opened before, but can be now"
