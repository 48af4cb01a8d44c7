"""Capture: from running applications to samples."""
