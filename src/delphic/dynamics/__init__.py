"""Where a run is going, and whether it is stable. On numbers alone: no model, no files, no command line."""
