"""What reaches torch's compiler."""

import pytest
import torch
from small_fit import small_learner

from levelfield.training.callbacks import CompileTrunk


@pytest.mark.slow
def test_the_compiler_gets_the_mode():
    given, learner = [], small_learner()

    def compiler(graph, inputs, **options):
        given.append(options)
        return graph

    CompileTrunk(compiler, "reduce-overhead").on_train_start(None, learner)
    learner.trunk(torch.rand(2, 3, 32, 32))
    assert given == [{"mode": "reduce-overhead"}]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode='fast' must be one of default, reduce-overhead, max-autotune"):
        CompileTrunk(mode="fast")


@pytest.mark.parametrize(("deterministic", "backend"), [(True, "inductor"), (False, "inductor"), (True, "eager")])
def test_a_note_says_what_determinism_costs_the_compiler(deterministic, backend, recwarn):
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        CompileTrunk(backend).on_train_start(None, small_learner())
    finally:
        torch.use_deterministic_algorithms(False)
    notes = [str(each.message) for each in recwarn if "--trainer.deterministic false" in str(each.message)]
    assert len(notes) == (deterministic and backend == "inductor")
