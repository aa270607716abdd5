"""Analyse a study's results: rows of tables, statistics, comparisons, verdicts, checks."""
