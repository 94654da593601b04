"""Counters of a cache."""

from dataclasses import dataclass


@dataclass
class CacheStats:
    """How often a cache could help."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    expirations: int = 0

    @property
    def requests(self):
        """Hits and misses together."""
        return self.hits + self.misses

    @property
    def hit_ratio(self):
        """Share of requests that were answered; 0.0 before the first one."""
        return self.hits / self.requests if self.requests else 0.0

    def __str__(self):
        return (
            f"{self.requests} requests, {self.hit_ratio:.1%} hits, "
            f"{self.evictions} evictions, {self.expirations} expirations"
        )
