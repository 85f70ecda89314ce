"""Before a run: a pilot on the user's own model and task, and the advice that it gives."""
