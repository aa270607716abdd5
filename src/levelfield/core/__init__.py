"""What every package stands on: source identity and the ledger of the test classes."""
