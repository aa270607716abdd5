"""Who does the jobs: this process or several, and how far they are."""
