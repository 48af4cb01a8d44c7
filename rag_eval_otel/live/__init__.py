"""The live pipeline: attach, capture, hold, score and release turn spans."""
