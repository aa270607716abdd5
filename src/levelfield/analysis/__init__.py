"""From a study's results to what they say: tables' rows, statistics, comparisons, verdicts, checks."""
