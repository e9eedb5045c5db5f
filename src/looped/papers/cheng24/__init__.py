"""cheng24."""
