"""Your losses, trunks, learners and data sets."""
