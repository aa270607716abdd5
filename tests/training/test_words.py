"""What the words of a command say of a training."""

from levelfield.training.words import learner_named


def test_an_option_without_a_value_takes_none_of_the_next() -> None:
    assert learner_named(["--resume", "--model.learner", "my_learner.MyLearner"]) == "my_learner.MyLearner"
