"""What results are called where people read them."""

EMBEDDINGS = ("separated", "concatenated")
METRIC_TITLES = {"map_at_r": "MAP@R", "r_precision": "R-precision", "precision_at_1": "P@1"}
TOO_FEW_RUNS = "too few runs for an interval"
