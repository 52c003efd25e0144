"""From the tensors of published checkpoints to the parameters of a model."""
