"""chen24, Looped transformers learn in context by multi-step gradient descent: every result as a check."""
