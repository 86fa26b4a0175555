"""Compile a function with a cache in a folder; print what came of it and how often it was found.

python compile_something.py FOLDER
"""

import json
import sys
import warnings

import jax
import jax.numpy as jnp

import pmcl

hits: list[str] = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))

jax.jit(lambda x: x + 1)(1.0)  # a cache that is asked for late is a cache all the same
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    folder = pmcl.compilation_cache(sys.argv[1])
    found = jax.jit(lambda x: jnp.linalg.inv(jnp.sin(x @ x)) @ x)(2.0 + jnp.eye(3))
print(
    json.dumps(
        {
            "folder": None if folder is None else str(folder),
            "hits": hits.count("/jax/compilation_cache/cache_hits"),
            "trace": float(jnp.trace(found)),
            "said": [str(w.message) for w in said],
        }
    )
)
