"""The adapter to the offloading interface that vLLM has from 0.30 to 0.32. Imports of vLLM are in this package only."""
