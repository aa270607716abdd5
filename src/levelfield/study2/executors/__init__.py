"""Where a study's jobs run: on this machine or on a Ray cluster. An executor changes no number."""
