"""Built-in secondary tiers; they come in through the same door as third parties do."""
