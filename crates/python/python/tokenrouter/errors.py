"""What can go wrong. Every exception is a :class:`TokenRouterError`; bad input is a :class:`ValueError` as well."""


class TokenRouterError(Exception):
    """Base of all exceptions of this package."""


class ConfigError(TokenRouterError, ValueError):
    """The configuration is wrong, or not for these models. The message names the place, the value and what is allowed."""


class ModelError(TokenRouterError):
    """A model could not be found or loaded."""


class InvalidRequestError(TokenRouterError, ValueError):
    """A prompt or a sampling parameter is wrong."""


class OverloadedError(TokenRouterError):
    """Too many requests are open (``system.max_active`` + ``system.max_queued``)."""


class EngineClosedError(TokenRouterError):
    """The engine drains, was closed, or has failed."""


class GenerationError(TokenRouterError):
    """A request ended with an error after it was taken: a model or a routing method failed."""


class ThroughputModelError(TokenRouterError, ValueError):
    """The throughput model refuses its input, or cannot answer within its limits."""
