"""Decisions, and nothing else: no async, no input or output, time is always an argument."""
