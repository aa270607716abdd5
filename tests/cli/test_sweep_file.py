"""The sweep's file: what W&B's agent would start is a fit of ours."""

import re
from collections.abc import Callable

import yaml
from tiny_fit import REPOSITORY

from levelfield.metrics.table import MONITOR


def test_an_agent_starts_a_fit_with_what_the_sweep_tries(run: Callable) -> None:
    sweep = yaml.safe_load((REPOSITORY / "configs/sweep/wandb.yaml").read_text())
    assert sweep["metric"] == {"name": MONITOR.replace("val/", "best/"), "goal": "maximize"}
    tried = {name: settings["max"] for name, settings in sweep["parameters"].items()}
    parts = {"${program}": [sweep["program"]], "${args}": [f"--{name}={value}" for name, value in tried.items()]}
    words = [each for word in sweep["command"] for each in parts.get(word, [word])]
    assert words[0] == "levelfield"
    code, printed, complaint = run(*words[1:], "--print_config")
    assert code == 0, complaint
    config = yaml.safe_load(printed)
    arguments = {f"model.loss.{name}": value for name, value in config["model"]["loss"]["init_args"].items()}
    assert arguments.items() >= tried.items()
    assert config["trainer"]["logger"]["init_args"]["offline"] is False
    assert re.search(r"wandb sweep configs/sweep/wandb\.yaml", (REPOSITORY / "docs/hyperparameters.md").read_text())
