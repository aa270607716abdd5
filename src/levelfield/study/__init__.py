"""A study: from its YAML file to jobs, workers, results and the evaluation on the test classes."""
