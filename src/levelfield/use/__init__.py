"""From a checkpoint to use: embeddings of any data, scores on another set, search, export, a model card."""
