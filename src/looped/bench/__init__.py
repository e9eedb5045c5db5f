"""Speed of a training step: our engines against the same model written with Hugging Face transformers."""
