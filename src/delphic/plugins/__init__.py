"""Delphic's objectives inside trainers that people already have."""
