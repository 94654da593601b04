"""The cache itself."""

import threading
import time
from collections import OrderedDict

from .stats import CacheStats

MISSING = object()


class TTLCache:
    """A mapping of limited size whose entries expire `ttl` seconds after they were set.

    Thread-safe. `clock` is a callable that returns seconds; it must never go back.
    """

    def __init__(self, maxsize, ttl, clock=time.monotonic):
        if maxsize < 1:
            raise ValueError(f"maxsize must be at least 1, got {maxsize}")
        if ttl <= 0:
            raise ValueError(f"ttl must be above 0, got {ttl}")
        self.maxsize = maxsize
        self.ttl = ttl
        self.stats = CacheStats()
        self._clock = clock
        self._lock = threading.RLock()
        # From the least to the most recently used: key -> (value, time at which it expires).
        self._entries = OrderedDict()

    def __getitem__(self, key):
        value = self.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key, value):
        self.set(key, value)

    def __delitem__(self, key):
        with self._lock:
            if self.pop(key, MISSING) is MISSING:
                raise KeyError(key)

    def __contains__(self, key):
        with self._lock:
            return self._live(key) is not None

    def __len__(self):
        with self._lock:
            self.purge()
            return len(self._entries)

    def get(self, key, default=None):
        """The value of a key, which becomes the most recently used one."""
        with self._lock:
            entry = self._live(key)
            if entry is None:
                self.stats.misses += 1
                return default
            self.stats.hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def peek(self, key, default=None):
        """The value of a key; neither its rank nor the counters change."""
        with self._lock:
            entry = self._live(key)
            return default if entry is None else entry[0]

    def set(self, key, value, ttl=None):
        """Store a value, for `ttl` seconds if given. Setting a key again starts its time again."""
        if ttl is not None and ttl <= 0:
            raise ValueError(f"ttl must be above 0, got {ttl}")
        with self._lock:
            expires = self._clock() + (self.ttl if ttl is None else ttl)
            self._entries[key] = (value, expires)
            self._entries.move_to_end(key)
            if len(self._entries) > self.maxsize:
                self._make_room()

    def pop(self, key, default=None):
        """Remove a key and return its value."""
        with self._lock:
            entry = self._live(key)
            if entry is None:
                return default
            del self._entries[key]
            return entry[0]

    def purge(self):
        """Remove every entry that has expired; returns how many."""
        with self._lock:
            now = self._clock()
            dead = [key for key, (_, expires) in self._entries.items() if expires <= now]
            for key in dead:
                del self._entries[key]
            self.stats.expirations += len(dead)
            return len(dead)

    def clear(self):
        """Remove everything; the counters stay."""
        with self._lock:
            self._entries.clear()

    def items(self):
        """Live pairs, from the least to the most recently used."""
        with self._lock:
            self.purge()
            return [(key, value) for key, (value, _) in self._entries.items()]

    def _live(self, key):
        """The entry of a key, unless it has expired."""
        entry = self._entries.get(key)
        if entry is not None and entry[1] <= self._clock():
            del self._entries[key]
            self.stats.expirations += 1
            return None
        return entry

    def _make_room(self):
        """Drop what has expired; if that was nothing, drop the least recently used entry."""
        if self.purge() == 0:
            self._entries.popitem(last=False)
            self.stats.evictions += 1
