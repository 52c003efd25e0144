"""Recipes of GLM-5.3-Flash, by name: how published checkpoints are stored, and a compact one."""
