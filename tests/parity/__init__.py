"""The parity harness: every level, and for every level something wrong that it must find."""
