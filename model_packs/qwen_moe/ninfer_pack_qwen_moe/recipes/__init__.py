"""Official recipes of models with experts, by name."""
