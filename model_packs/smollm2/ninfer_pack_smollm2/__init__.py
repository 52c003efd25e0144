"""SmolLM2 and other models of the Llama architecture."""
