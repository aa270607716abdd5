"""For files of `callbacks`, which import the modules that lie here."""
