"""What figures still lack at a scale: listed, predicted, trained and measured within some minutes, and carried home."""
