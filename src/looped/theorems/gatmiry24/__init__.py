"""gatmiry24, On the role of depth and looping for in-context learning with task diversity: every result as a check."""
