"""Continual amortized Bayesian inference for PyMC.

Write a PyMC model; :func:`fit_amortized` trains an amortized posterior on simulations from it,
``posterior.adapt(task)`` adapts it to real, unlabeled data, ``posterior.sample(data)`` draws.
"""

import lazy_loader

__version__ = "0.2.0"
# the public names and their places stand in __init__.pyi; each is imported when it is first used
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
