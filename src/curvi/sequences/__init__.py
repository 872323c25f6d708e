"""State-space models of a series."""

from curvi.latent import Band, Lattice
from curvi.sequences._state_space import StateSpace

__all__ = ["Band", "Lattice", "StateSpace"]
