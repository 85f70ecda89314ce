"""The papers' experiments, at a size a CPU can run: `delphic reproduce`."""
