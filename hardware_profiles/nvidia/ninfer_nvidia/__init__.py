"""Finding NVIDIA cards, and what profiles of them have in common. Imports no torch."""
