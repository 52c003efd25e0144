"""Dense Qwen hybrids: Gated DeltaNet and gated attention with a SwiGLU MLP."""
