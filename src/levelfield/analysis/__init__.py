"""Scores, statistics, comparisons, conclusions and checks of a study's results."""
