"""How fast a training step is: our engines against the same model written with Hugging Face transformers."""
