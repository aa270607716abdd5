"""A fit hides what Lightning always says, and prints what the user asks for."""

import logging


def test_a_profiler_prints_its_report(tiny, run, tmp_path):
    printed: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = printed.append
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path, "--trainer.profiler", "simple"]
        code, _, complaint = run(*words)
    finally:
        logger.removeHandler(handler)
    assert code == 0, complaint
    [report] = [record.getMessage() for record in printed]
    assert "run_training_epoch" in report
