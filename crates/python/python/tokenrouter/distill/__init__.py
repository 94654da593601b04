"""Makes a really small student out of a large teacher: ``python -m tokenrouter.distill``.

The student has a few of the teacher's layers (or layers of its own sizes), shares the teacher's embedding, and can write a
part of the vocabulary. It learns from text that the teacher wrote itself (``trbench generate``), by the divergence from the
teacher's next-token probabilities. Guide: ``docs/guides/distill.md``.
"""


class DistillError(ValueError):
    """Input that cannot be used; the message names the place, the value and what is allowed."""
