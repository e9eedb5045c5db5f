"""gao24's lemmas and theorems: softmax heads that run gradient descent and Newton's method in a limit."""
