"""Models of sequences: state-space models of a series, and deep Markov models of many."""

from curvi.sequences._bands import Band
from curvi.sequences._deep_markov import DeepMarkovModel
from curvi.sequences._markov import MarkovObjective
from curvi.sequences._nested import Lattice
from curvi.sequences._state_space import StateSpace

__all__ = ["Band", "DeepMarkovModel", "Lattice", "MarkovObjective", "StateSpace"]
