"""How good is the gradient, and how many completions should it use? On rewards, scores and Gram matrices alone."""
