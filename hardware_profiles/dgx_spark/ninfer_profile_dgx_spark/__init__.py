"""The DGX Spark as a hardware profile of NInfer."""
