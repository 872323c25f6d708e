"""Latent Gaussian models: rows that see Gaussian effects through one linear predictor each."""
