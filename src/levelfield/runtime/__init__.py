"""What surrounds a computation: signals, child processes, and the modules of one's own."""
