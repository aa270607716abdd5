"""The parser of what a training is made of: no abbreviations, and a help of one page."""

import re
import textwrap
from argparse import SUPPRESS
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from levelfield.errors import UserError
from levelfield.runtime.import_path import why_not_importable
from levelfield.training.mistakes import OneLineParser, class_names
from levelfield.training.words import files_found, set_aside, texts_in

# In the options' own words or of no use on the command line.
HIDDEN = ("help", "config", "print_config", "weights_only", "return_predictions", "verbose", "checkpoint_seconds")
SHORT_TEXTS = {"ckpt_path": "a checkpoint: fit goes on from it, validate, test and predict read all settings from it"}


class LevelfieldParser(OneLineParser, LightningArgumentParser):
    """LightningArgumentParser with a help of one page."""

    def format_help(self, formatter: Any = None) -> str:
        return short_help(self)

    def parse_args(self, args: Any = None, *more: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        args = [*_adapters_named(files_found(args))]
        with _failing_imports(args):
            return super().parse_args(args, *more, **kwargs)

    def parse_object(self, cfg_obj: Any, *more: Any, **kwargs: Any) -> Namespace:
        with _failing_imports(cfg_obj):
            return super().parse_object(cfg_obj, *more, **kwargs)

    def _apply_actions(self, cfg: Any, parent_key: str = "", *more: Any, **kwargs: Any) -> Namespace:
        if isinstance(cfg, dict) and not parent_key:
            cfg = set_aside(cfg)
        return super()._apply_actions(cfg, parent_key, *more, **kwargs)


def _adapters_named(words: Iterable[str]) -> Iterator[str]:
    """The words with adapters as their classes are called: `--model.adapter lora` is LoRA's."""
    option = ""
    for word in words:
        key, _, value = word.partition("=") if "=" in word else (option, "", word)
        if key == "--model.adapter" and value:
            names = {name.lower(): name for name in class_names("model.adapter")}
            word = word.removesuffix(value) + names.get(value.lower(), value)
        yield word
        option = word


@contextmanager
def _failing_imports(given: Any) -> Iterator[None]:
    """Says in a line which class of the words or the configuration lies in a module that raises when it is imported."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        for key, text in texts_in(given):
            if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*\.[A-Z]\w*", text) and (reason := why_not_importable(text)):
                raise UserError(f"--{key}: {reason}") from error
        raise


def short_help(parser: LightningArgumentParser) -> str:
    """What a training is made of: model and data, a line or two for each option."""
    sections: dict[str, list[str]] = {"run": [], "model": [], "data": []}
    for action in parser._actions:
        section = "run" if "." not in action.dest else action.dest.partition(".")[0]
        shown = action.option_strings and action.default != SUPPRESS and action.dest.rpartition(".")[2] not in HIDDEN
        if section in sections and shown:
            sections[section].append(_option_help(action))
    command = parser.prog.split()[-1].rpartition("/")[2]
    lines = [
        f"usage: levelfield {command} [--config FILE ...] [--KEY VALUE ...]",
        "",
        "  --config FILE  a YAML file; several stack, the later one wins, options win over files",
        "  --print_config prints the resulting configuration and exits",
        *sections["run"],
        "",
        "model: trunk -> embedder -> loss",
        *sections["model"],
        "",
        "data: M-per-class batches of the training classes, a held-out fold for validation",
        *sections["data"],
        "",
        "A class takes its arguments behind its key: --model.loss ArcFaceLoss --model.loss.margin 20",
        "A learner of your own: --model my_learner.MyLearner (docs/own_learner.md)",
        "trainer: any argument of Lightning's Trainer, e.g. --trainer.max_epochs 5 --trainer.devices 2;",
        "  --print_config lists them",
    ]
    return "\n".join(lines) + "\n"


def _option_help(action: Any) -> str:
    text = SHORT_TEXTS.get(action.dest) or " ".join(str(action.help).split())
    names = class_names(action.dest)
    default = action.default
    if getattr(default, "class_path", None) or isinstance(default, dict):
        arguments = default.get("init_args") or {}
        default = default["class_path"].rpartition(".")[2] + (f" {arguments['name']}" if "name" in arguments else "")
    suffix = f" (default {default})" if isinstance(default, int | float | str) else ""
    head = f"  --{action.dest}{suffix}"
    body = textwrap.wrap(text + (f" One of: {', '.join(names)}." if names else ""), width=112)
    return "\n".join([head, *(f"      {line}" for line in body)])
