"""Use a checkpoint: embed any data, score another data set, search, export, model cards."""
