"""Ops of hyper-connections, n-gram embeddings, sparse and latent attention."""
