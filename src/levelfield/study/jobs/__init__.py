"""The jobs of a study: what each is, does and leaves, and where the study stands."""
