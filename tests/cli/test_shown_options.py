"""Options that the pages show and that no other test is about."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deletable import RAY, needs
from refused import refused
from torch import nn

from levelfield import __version__
from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk
from levelfield.study.rows import find_study, load_spec
from levelfield.study.workers import Here, Scheduler, Unit
from levelfield.training.learner import MetricLearner


def test_the_version_is_the_packages(run: Callable) -> None:
    assert run("--version") == (0, f"{__version__}\n", "")


def test_debug_shows_where_an_error_arose(run: Callable) -> None:
    words = ("data", "list", "nosuch")
    refused(run(*words), "nosuch")
    code, _, complaint = run(*words, "--debug")
    assert code == 2
    assert re.fullmatch(r"Traceback \(.*\nlevelfield\.core\.errors\.UserError: .*nosuch.*\n", complaint, re.DOTALL)


def test_a_study_with_debug_shows_where_your_code_failed() -> None:
    lines, unit = list[str](), Unit("mine run 0", "mine", lambda _: 1 / 0, ())
    for debug in (False, True):
        with pytest.raises(UserError, match="mine run 0: ZeroDivisionError"):
            Scheduler(lambda: [unit], print, Here(), lines.append, debug).run()
    assert "Traceback" not in lines[0]
    assert lines[1].startswith("Traceback")
    assert "1 / 0" in lines[1].removesuffix(lines[0])


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_scale(frozen: bool) -> None:
    trunk = TimmTrunk("test_resnet", weights=None)
    learner = MetricLearner(trunk, ContrastiveLoss(), embedding_size=8, freeze_batch_norm=frozen).train()
    norms = [module for module in trunk.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    learner(torch.rand(4, 3, 32, 32)).square().mean().backward()
    assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True)) == frozen
    (trained, *_) = [group["params"] for group in learner.configure_optimizers().param_groups]
    assert all(any(norm.weight is weight for weight in trained) for norm in norms)
    assert any(norm.weight.grad.abs().sum() > 0 for norm in norms)


@needs(RAY)
def test_a_job_reserves_the_cpus_and_gpus_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from levelfield.study.executors.ray import Ray

    nodes = [{"Alive": True, "Resources": resources} for resources in ({"CPU": 2, "GPU": 0.75}, {"CPU": 6})]
    given: dict[str, Any] = {}
    cluster = SimpleNamespace(
        cluster_resources=dict,
        nodes=lambda: nodes,
        remote=lambda _: SimpleNamespace(options=lambda **options: given.update(options)),
    )
    monkeypatch.setattr("levelfield.study.executors.ray._connected", lambda _: cluster)
    spec = load_spec(find_study("quickstart"))
    for options, number, cpus, gpus in (
        ({"cpus": 1}, 8, 1, 0),
        ({"cpus": 2}, 4, 2, 0),
        ({"cpus": 1, "workers": 3}, 3, 1, 0),
        ({"cpus": 1, "gpus": 0.25}, 2, 1, 0.25),
        ({"cpus": 0.5, "gpus": 0.25}, 3, 0.5, 0.25),
        ({"cpus": 1, "gpus": 0.5}, 1, 1, 0.5),
    ):
        assert Ray(spec, **options).number == number, options
        assert (given["num_cpus"], given["num_gpus"]) == (cpus, gpus)
