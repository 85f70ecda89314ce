"""What is wrong with a run, which of its failure modes it is, and what to change: on a table of steps alone."""
