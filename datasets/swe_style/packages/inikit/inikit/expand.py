"""Expansion of `${key}` and `${section:key}` references."""

import re

from .document import Document
from .errors import InterpolationError

REFERENCE = re.compile(r"\$(?:\$|\{([^}]*)\})")


def expand(document):
    """A new document with every reference replaced by the value that it names. `$$` stands for `$`."""
    result = Document()
    for section in document:
        target = result.section(section.name)
        for key, value in section.items():
            target[key] = expand_value(document, section.name, value, ((section.name, key.casefold()),))
    return result


def expand_value(document, section, value, active):
    """One value; `active` is the chain of keys that are being expanded."""

    def replacement(match):
        if match.group(0) == "$$":
            return "$"
        name, key = target_of(section, match.group(1))
        if (name, key.casefold()) in active:
            chain = " -> ".join(f"{s}:{k}" for s, k in active + ((name, key.casefold()),))
            raise InterpolationError(f"circular reference: {chain}")
        if name not in document or key not in document[name]:
            raise InterpolationError(f"`${{{match.group(1)}}}` in section `{section}` names a key that does not exist")
        return expand_value(document, name, document[name][key], active + ((name, key.casefold()),))

    return REFERENCE.sub(replacement, value)


def target_of(section, reference):
    """Section and key of a reference; without a section, the one that it stands in."""
    name, colon, key = reference.partition(":")
    if not colon:
        return section, name.strip()
    return name.strip(), key.strip()
