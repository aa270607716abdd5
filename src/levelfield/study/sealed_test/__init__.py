"""The last stage: the test classes are opened and every run is scored."""
