"""The loop, the lag schedule, checkpoints and metrics."""
