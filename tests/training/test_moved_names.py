"""What was written before the modules had rooms is still read."""

import torch


def test_a_checkpoint_and_a_configuration_of_before_the_move_are_read(fitted, run, tmp_path):
    checkpoint = torch.load(fitted / "best.ckpt", weights_only=True)
    checkpoint["hyper_parameters"]["optimizer"] = "levelfield.learner.adamw"
    torch.save(checkpoint, tmp_path / "best.ckpt")
    code, _, complaint = run("validate", "--ckpt_path", tmp_path / "best.ckpt")
    assert code == 0, complaint

    config = (fitted / "config.yaml").read_text()
    assert "levelfield.training.learner.adamw" in config
    before = config.replace("levelfield.training.learner.", "levelfield.learner.")
    warm_up = "  callbacks: {class_path: levelfield.callbacks.WarmUp, init_args: {steps: 1}}\n"
    (tmp_path / "config.yaml").write_text(before.replace("  callbacks: null\n", warm_up))
    code, _, complaint = run("fit", "--config", tmp_path / "config.yaml", "--output", tmp_path)
    assert code == 0, complaint
    written = next(tmp_path.glob("fit/*/0/config.yaml")).read_text()
    assert "levelfield.training.callbacks.WarmUp" in written
    assert "levelfield.learner" not in written
