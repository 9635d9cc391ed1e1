"""Eviction policies: which row of the primary tier goes when room is needed."""
