"""What a study and a fit keep on disk: atomic files, locks, the ledger of the test classes, provenance."""
