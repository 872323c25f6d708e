"""Models whose expectations are known better than by draws: generalised linear models."""
