"""Qwen3.8-Flash-Next: hybrids with streams, hashed n-grams and sparse attention."""
