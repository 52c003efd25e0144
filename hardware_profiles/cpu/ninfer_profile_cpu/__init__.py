"""The CPU as a hardware profile of NInfer."""
