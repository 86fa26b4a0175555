"""PyTensor graphs to JAX functions."""
