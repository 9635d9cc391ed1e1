"""Replay of request traces: the real manager, and real ranks that move real bytes and check every one of them."""
