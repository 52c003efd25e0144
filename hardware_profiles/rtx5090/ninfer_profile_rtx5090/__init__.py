"""The GeForce RTX 5090 as a hardware profile of NInfer."""
