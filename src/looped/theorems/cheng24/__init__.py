"""cheng24, Transformers implement functional gradient descent to learn non-linear functions: every result checked."""
