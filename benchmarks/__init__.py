"""Benchmarks: every number stands beside this machine's own limit, measured in the same run (``make bench``)."""
