"""`levelfield compare`: its decision, and the length of a training on all training classes."""
