"""The shipped methods: each trains, and they search equal scales with each paper's own setting inside."""

import inspect
from pathlib import Path

import pytest
import torch
import yaml
from loss_cases import needs_classes, shipped
from tiny_fit import REPOSITORY

from levelfield import losses, miners, regularizers
from levelfield.core.configuration import merge
from levelfield.study.methods import method_of_loss
from levelfield.training.build import Training
from levelfield.training.settings import DEFAULT_TRUNK, OF_THE_LOSS

FILES = {file.stem: yaml.safe_load(file.read_text()) for file in (REPOSITORY / "configs" / "method").glob("*.yaml")}
METHODS = dict(sorted({**FILES, **dict(method_of_loss(loss.__name__, "") for loss in shipped())}.items()))
# But for a sum of losses, which the learner makes: tests/study/test_shipped_studies.py.
ONE_LOSS = {name: config for name, config in METHODS.items() if name != "cross_batch_memory"}
RATE, TEMPERATURE, SCALE = (1e-6, 10.0), (1e-3, 10.0), (0.1, 1000.0)
# What divides or multiplies a cosine or a distance in an exponent, by its method where the name alone does not say so.
TEMPERATURES = {"temperature", "anneal", "rank_temperature", "soft_triple.gamma"}
SCALES = {"scale", "softmax_scale", "la", "hist.tau", "Tn", "rho", "circle.gamma", "proxy_anchor.alpha"} | {
    f"{method}.{name}" for method in ("multi_similarity", "multi_similarity_miner") for name in ("alpha", "beta")
}
OTHER_LOG = {"network_rate", "recall_temperature", "weights.memory"}
LINEAR = {"margin", "m", "pos_margin", "neg_margin", "lower_margin", "upper_margin", "base"}

# Each paper's recommended setting, angles in degrees; losses that it says nothing of are left out.
RECOMMENDED = {
    "adaface": ("Kim et al. 2022", {"margin": 0.4, "scale": 64}),
    "angular": ("Wang et al. 2017", {"alpha": 45}),
    "arcface": ("Deng et al. 2019", {"margin": 28.65, "scale": 64}),
    "centroid_triplet": ("Wieczorek et al. 2021, their code", {"margin": 0.5}),
    "circle": ("Sun et al. 2020", {"m": 0.4, "gamma": 80}),
    "contextual": (
        "Liao et al. 2023, their code",
        {"epsilon": 0.05, "pos_margin": 0.75, "neg_margin": 0.6, "context_weight": 0.4},
    ),
    "contrastive": ("Musgrave et al. 2020, Cars-196", {"pos_margin": 0.2652, "neg_margin": 0.5409}),
    "cosface": ("Wang et al. 2018", {"margin": 0.35, "scale": 64}),
    "cross_batch_memory": ("Wang et al. 2020, their code", {"weights.memory": 1, "pos_margin": 0, "neg_margin": 1}),
    "decoupled_contrastive": ("Yeh et al. 2022, their code", {"temperature": 0.1}),
    "fast_ap": ("Cakir et al. 2019", {"num_bins": 10}),
    "hist": ("Lim et al. 2022, their code", {"loss_lr": 0.1, "tau": 32, "alpha": 0.9, "network_rate": 0.01}),
    "hyperbolic_cross_entropy": ("Ermolov et al. 2022", {"temperature": 0.2}),
    "lifted_structure": ("Oh Song et al. 2016", {"neg_margin": 1, "pos_margin": 0}),
    "magface": (
        "Meng et al. 2021",
        {"lower_margin": 25.78, "upper_margin": 45.84, "scale": 64, "regularizer_weight": 35},
    ),
    "margin": ("Wu et al. 2017", {"margin": 0.2, "beta": 1.2, "loss_lr": 0.1}),
    "margin_per_class": ("Wu et al. 2017", {"margin": 0.2, "beta": 1.2, "loss_lr": 0.1}),
    "multi_similarity": ("Wang et al. 2019", {"alpha": 2, "beta": 50, "base": 1}),
    "multi_similarity_miner": ("Wang et al. 2019", {"alpha": 2, "beta": 50, "base": 1, "epsilon": 0.1}),
    "n_pairs": ("Sohn 2016, without a temperature", {"temperature": 1}),
    "normalized_softmax": ("Zhai & Wu 2019", {"temperature": 0.05}),
    "normalized_softmax_center_invariance": ("Zhai & Wu 2019", {"temperature": 0.05}),
    "ntxent": ("Chen et al. 2020", {"temperature": 0.1}),
    "ntxent_koleo": ("Oquab et al. 2023, their code", {"weight": 0.1}),
    "ntxent_spherical_constraint": ("Zhang et al. 2020, their script", {"weight": 1}),
    "pnp": ("Li et al. 2022", {"alpha": 4, "anneal": 0.01}),
    "potential_field": ("Bhatnagar & Ahuja 2025", {"loss_lr": 0.1, "delta": 0.2, "alpha": 4}),
    "proxy_anchor": ("Kim et al. 2020", {"margin": 0.1, "alpha": 32, "loss_lr": 0.01}),
    "proxy_nca": ("Movshovitz-Attias et al. 2017, without a scale", {"softmax_scale": 1}),
    "proxy_triplet": ("Fehervari et al. 2019, their code", {"margin": 1}),
    "ranked_list": ("Wang et al. 2019", {"margin": 0.4, "alpha": 1.2, "Tn": 10}),
    "recall_at_k": ("Patel et al. 2022", {"recall_temperature": 1, "rank_temperature": 0.01}),
    "roadmap": ("Ramzi et al. 2021", {"temperature": 0.01, "rho": 100, "weight": 0.5, "beta": 0.6}),
    "sigmoid_pair": ("Zhai et al. 2023", {"scale": 10, "bias": -10}),
    "signal_to_noise_ratio": ("Musgrave et al. 2020, Cars-196", {"pos_margin": 0.1671, "neg_margin": 0.9338}),
    "smooth_ap": ("Brown et al. 2020", {"temperature": 0.01}),
    "soft_nearest_neighbor": ("Vasilev & D'yakonov 2023", {"temperature": 0.1}),
    "soft_triple": ("Qian et al. 2019", {"la": 20, "gamma": 0.1, "reg_weight": 0.1, "margin": 0.01}),
    "sphereface": ("Liu et al. 2017", {"margin": 4}),
    "structured_clustering": ("Oh Song et al. 2017, their code", {"gamma": 1}),
    "subcenter_arcface": ("Deng et al. 2020", {"margin": 28.65, "scale": 64}),
    "supcon": ("Khosla et al. 2020", {"temperature": 0.1}),
    "triplet_margin": ("Schroff et al. 2015", {"margin": 0.2}),
    "tuplet_margin": ("Yu & Tao 2019", {"margin": 5.73, "scale": 64}),
}


def space_of(method: str) -> dict[str, dict]:
    """Argument to range."""
    search = METHODS[method]["search"]
    short = {key: key.rpartition("init_args.")[2] for key in search}
    return {short[key].removeprefix("model."): place for key, place in search.items()}


@pytest.mark.parametrize("method", METHODS)
def test_rates_temperatures_and_scales_have_the_same_log_range_in_every_method(method: str) -> None:
    for name, place in space_of(method).items():
        names = {name, f"{method}.{name}"}
        wanted = [RATE] * (name == "loss_lr") + [TEMPERATURE] * bool(names & TEMPERATURES)
        wanted += [SCALE] * bool(names & SCALES)
        edit = f"{method}: the range of {name}; edit it, or the names at the top of {Path(__file__).name}"
        if wanted:
            assert [(place["low"], place["high"])] == wanted, edit
        if wanted or names & OTHER_LOG:
            assert place["scale"] == "log", edit
        if name in LINEAR:
            assert place["scale"] == "linear", edit


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_setting_is_in_the_space(method: str) -> None:
    space = space_of(method)
    assert len(space) <= 5, "as many arguments as another method, or fewer"
    for name, value in RECOMMENDED.get(method, ("", {}))[1].items():
        assert space[name]["low"] <= value <= space[name]["high"], name


def test_a_method_without_a_recommended_setting_has_none_in_its_paper() -> None:
    """Prototypical has nothing to set; no weight of these three beside a loss with labels was published."""
    unknown = {"prototypical", "ntxent_anti_collapse", "ntxent_uniformity", "ntxent_zero_mean"}
    edit = "add the paper's setting to RECOMMENDED, or the method to `unknown` if there is none"
    assert METHODS.keys() - RECOMMENDED.keys() == unknown, edit


def test_every_loss_has_a_space_in_one_place():
    for loss in shipped():
        name = loss.__module__.rpartition(".")[2]
        assert hasattr(loss, "search_space") != (name in FILES), f"{loss.__name__}: give it a `search_space`"
        assert METHODS[name]["model"]["loss"]["class_path"] == f"levelfield.losses.{loss.__name__}"
        if name not in FILES:  # `method_of_loss` reads the source: it imports no class
            assert [*space_of(name)] == [*loss.search_space]
            assert needs_classes(loss) == (METHODS[name].get("data") == {"samples_per_class": 1})
            assert not [key for key in OF_THE_LOSS if hasattr(loss, key.partition(".")[2])]


def test_every_regularizer_has_a_configuration():
    models = [config["model"] for config in ONE_LOSS.values()]
    paths = {model["regularizer"]["class_path"] for model in models if "regularizer" in model}
    listed = set(regularizers.__all__) - {"Regularizer"}
    assert paths == {f"levelfield.regularizers.{name}" for name in listed}


@pytest.mark.parametrize("method", ONE_LOSS)
def test_a_configuration_builds_its_loss_and_begins_within_its_space(method):
    config = METHODS[method]
    model, search = config["model"], config["search"]
    assert set(config) - {"data"} == {"model", "search"}
    parts = {"loss": losses, "miner": miners, "regularizer": regularizers}
    given = {part: model[part]["class_path"].rpartition(".")[2] for part in parts if part in model}
    kinds = {part: getattr(parts[part], name) for part, name in given.items()}
    with_classes = needs_classes(kinds["loss"])
    for part, kind in kinds.items():
        sizes = {"num_classes": 3, "embedding_size": 4} if part == "loss" and with_classes else {}
        made = kind(**model[part]["init_args"], **sizes)
    if "regularizer" in kinds:
        assert (made.of == "raw_embeddings") <= (model.get("normalize") is False)
        assert (made.of == "class_weights") <= with_classes
        plain = METHODS[method.partition(f"_{kinds['regularizer'].__module__.rpartition('.')[2]}")[0]]
        assert model["loss"] == plain["model"]["loss"]
        assert plain["search"].items() <= search.items()
    needs_pairs = not with_classes or kinds["loss"] is losses.PotentialFieldLoss  # its samples meet each other, too
    assert (config.get("data") == {"samples_per_class": 1}) != needs_pairs
    for key, bounds in search.items():
        assert set(bounds) - {"integer"} == {"low", "high", "scale"}
        if key != "model.loss_lr":
            _, part, _, argument = key.split(".")
            defaults = {each.name: each.default for each in inspect.signature(kinds[part]).parameters.values()}
            assert bounds["low"] <= model[part]["init_args"].get(argument, defaults[argument]) <= bounds["high"]


BASE = f"""
trainer: {{accelerator: cpu, max_epochs: 1, logger: false, num_sanity_val_steps: 0}}
model: {{trunk: {DEFAULT_TRUNK}}}
data:
  dataset: {{class_path: levelfield.data.datasets.Glyphs, init_args: {{num_classes: 80}}}}
  transforms: {{crop_size: 64, resize: 64, scale: [0.6, 1.0], horizontal_flip: false}}
  steps_per_epoch: 50
"""


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_it_trains_the_pretrained_trunk_in_the_learner(name, tmp_path):
    """50 steps on letters improve validation MAP@R over the start."""
    torch.manual_seed(0)
    config = merge(yaml.safe_load(BASE), FILES[name])
    training = Training(config, tmp_path).build()
    trainer, parts = training.trainer, {"model": training.model, "datamodule": training.datamodule}
    (before,) = trainer.validate(**parts, verbose=False)
    trainer.fit(**parts)
    (after,) = trainer.validate(**parts, verbose=False)
    assert after["val/map_at_r"] > before["val/map_at_r"]
