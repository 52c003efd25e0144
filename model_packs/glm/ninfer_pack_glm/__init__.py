"""GLM-5.3-Flash: Kimi Delta Attention and sparse latent attention on mixing residual streams."""
