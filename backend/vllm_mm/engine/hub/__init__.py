"""Weights from the Hugging Face Hub: downloads in a process of their own, and what of them is on the disk."""
