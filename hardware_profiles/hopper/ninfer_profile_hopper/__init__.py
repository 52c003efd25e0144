"""The H200 of the Hopper generation as a hardware profile of NInfer."""
