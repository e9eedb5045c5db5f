"""Random bad input at every entry point: an answer that is finite, or one line that says what is wrong."""
