"""Files of studies and fits: atomic writes, locks, checksums, provenance."""
