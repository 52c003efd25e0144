"""Commands for those who build on NInfer: plan, doctor, kernels, new."""
