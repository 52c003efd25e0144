"""Perplexity of a model on texts, and its divergence from another run."""
