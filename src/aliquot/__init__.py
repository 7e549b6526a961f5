"""Aliquot shares GPUs fairly between teams."""

__version__ = "0.1.0"
