"""Evaluations on held-out problems: which tasks, what came out, what changed, and how far a gain carries."""
