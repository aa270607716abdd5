"""Who does a study's jobs: an executor a file, found by its name. They change no number."""
