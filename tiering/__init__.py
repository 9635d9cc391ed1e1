"""Multi-tier KV-cache offloading for LLM serving engines."""
