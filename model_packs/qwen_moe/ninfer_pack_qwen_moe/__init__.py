"""Qwen hybrids with a mixture of experts in every layer."""
