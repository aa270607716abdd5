"""Signals, child processes, imports and your own modules."""
