"""The language model: loading, sampling, log-probs."""
