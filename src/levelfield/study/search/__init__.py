"""Which setting a trial gets, from the trials before it."""
