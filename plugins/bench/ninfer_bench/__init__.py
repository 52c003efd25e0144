"""Benchmarks of NInfer, each a module of its own."""
