"""Kernels as the ops of the core: callables on torch tensors, made once for each bound op."""
