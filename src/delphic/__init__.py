"""delphic: plan, train and diagnose group-relative RL for language models."""

__version__ = "0.1.0"
