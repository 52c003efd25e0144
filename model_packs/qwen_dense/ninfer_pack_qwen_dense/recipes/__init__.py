"""Official recipes of dense models, by name."""
