"""Models of sequences: state-space models of a series, and deep Markov models of many."""

from curvi.sequences._bands import Band
from curvi.sequences._nested import Lattice
from curvi.sequences._state_space import StateSpace

__all__ = ["Band", "Lattice", "StateSpace"]
