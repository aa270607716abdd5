"""One training: the learner, its configuration, checkpoints and folder."""
