"""Exceptions. Every exception is a :class:`TokenRouterError`; those for bad input are also a :class:`ValueError`."""


class TokenRouterError(Exception):
    """Base of all exceptions of this package."""


class ConfigError(TokenRouterError, ValueError):
    """The configuration is wrong, or does not fit the models. The message names the place, the value and what is allowed."""


class ModelError(TokenRouterError):
    """A model could not be found or loaded."""


class InvalidRequestError(TokenRouterError, ValueError):
    """A prompt or a sampling parameter is wrong."""


class OverloadedError(TokenRouterError):
    """Too many requests are open (``system.max_active`` + ``system.max_queued``)."""


class EngineClosedError(TokenRouterError):
    """The engine is draining, was closed, or has failed."""


class GenerationError(TokenRouterError):
    """A request ended with an error after the engine had accepted it: a model or a routing method failed."""


class ThroughputModelError(TokenRouterError, ValueError):
    """The throughput model refuses its input, or cannot answer within its limits."""
