"""Source checkpoints (safetensors directories, GGUF files) to `.ninfer` sets."""
