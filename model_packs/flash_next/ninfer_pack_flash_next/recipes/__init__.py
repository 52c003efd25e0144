"""Recipes of Flash-Next, by name: how published checkpoints are stored, and a compact one."""
