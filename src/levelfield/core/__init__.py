"""Configurations, source digests and the ledger of evaluations, which all packages use."""
