"""The command line: ``tiering``."""
