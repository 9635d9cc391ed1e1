"""Other projects doing the same work on the same machine; each script needs its project to be installed."""
