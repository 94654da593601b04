"""A decorator that remembers results of a function."""

import functools
import time

from .cache import MISSING, TTLCache

# Separates positional from keyword arguments in a key.
MARK = object()


def cached(maxsize=128, ttl=60.0, clock=time.monotonic, typed=False):
    """Remember results by arguments. With `typed`, `f(1)` and `f(1.0)` are different calls.

    A function that raises is called again the next time. The cache is at `function.cache`, the bare function at
    `function.__wrapped__`.
    """

    def decorate(function):
        cache = TTLCache(maxsize, ttl, clock)

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            key = make_key(args, kwargs, typed)
            value = cache.get(key, MISSING)
            if value is MISSING:
                value = function(*args, **kwargs)
                cache[key] = value
            return value

        wrapper.cache = cache
        return wrapper

    return decorate


def make_key(args, kwargs, typed):
    """A hashable key for a call; the order of keyword arguments does not matter."""
    named = tuple(sorted(kwargs.items()))
    key = args + (MARK,) + named
    if typed:
        key += (MARK,) + tuple(type(value) for value in args) + tuple(type(value) for _, value in named)
    return key
