"""What a file holds: sections in order, keys in order."""


class Section:
    """Keys and values in the order of the file. Keys are compared without regard to case."""

    def __init__(self, name):
        self.name = name
        self._values = {}
        self._spelling = {}

    def __setitem__(self, key, value):
        folded = key.casefold()
        self._spelling.setdefault(folded, key)
        self._values[folded] = value

    def __getitem__(self, key):
        return self._values[key.casefold()]

    def __delitem__(self, key):
        folded = key.casefold()
        del self._values[folded]
        del self._spelling[folded]

    def __contains__(self, key):
        return key.casefold() in self._values

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return iter(self._spelling.values())

    def get(self, key, default=None):
        """The value of a key, or the default."""
        return self._values.get(key.casefold(), default)

    def items(self):
        """Pairs of key, as first written, and value."""
        return [(self._spelling[folded], value) for folded, value in self._values.items()]


class Document:
    """Sections by name, in the order of the file."""

    def __init__(self):
        self._sections = {}

    def section(self, name):
        """The section of that name; made if it is not there."""
        if name not in self._sections:
            self._sections[name] = Section(name)
        return self._sections[name]

    def __getitem__(self, name):
        return self._sections[name]

    def __contains__(self, name):
        return name in self._sections

    def __iter__(self):
        return iter(self._sections.values())

    def __len__(self):
        return len(self._sections)

    def to_dict(self):
        """Plain dictionaries, for comparing and printing."""
        return {section.name: dict(section.items()) for section in self}
