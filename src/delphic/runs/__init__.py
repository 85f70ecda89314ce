"""Logs of runs, this framework's and others', as tables."""
