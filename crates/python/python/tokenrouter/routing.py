"""Routing methods written in Python."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

#: Decisions besides the index of the model that writes on.
STAY = -1
RETRY = -2
FINISH = -3


class Needs(NamedTuple):
    """Signals of a model that :meth:`RoutingPolicy.route` reads; nothing else is computed."""

    #: ``entropy`` and ``log_sum_exp``.
    softmax: bool = False
    #: This many of the largest logits, in ``top_logits`` and ``top_ids``.
    top_logits: int = 0
    #: The hidden state that the head is given.
    hidden: bool = False
    #: The input embedding of the candidate.
    embedding: bool = False
    #: A row of the head that is no token: its logit is ``extra``.
    extra_row: Optional[int] = None


class SentRow(NamedTuple):
    """What :meth:`RoutingPolicy.send` is told of a request that switches."""

    request: int
    model: int
    position: int
    candidate: int
    score: float


class BatchView:
    """The rows of one step that have a candidate. Every property is a NumPy array over the rows.

    The arrays are views of memory that the engine fills for every step: no copy is made for Python, what is written into
    ``decision``, ``drop``, ``score`` and ``state`` is read in place, and the arrays are only good until ``route`` returns.
    Signals that :meth:`RoutingPolicy.needs` did not ask for are zero-width, or hold values of no meaning.
    """

    __slots__ = (
        "model", "size", "_candidate", "_decision", "_draw", "_drop", "_embedding", "_entropy", "_extra", "_hidden",
        "_log_sum_exp", "_position", "_prompt_tokens", "_request", "_score", "_state", "_threshold", "_top_ids",
        "_top_logits", "_visit_steps", "_visit_tokens",
    )  # fmt: skip

    def __init__(self, model: int, rows: int, top: int, hidden: int, embedding: int, state: int) -> None:
        #: The model that made the step.
        self.model = model
        #: Number of rows.
        self.size = 0
        self._request = np.zeros(rows, np.uint64)
        self._position = np.zeros(rows, np.int64)
        self._prompt_tokens = np.zeros(rows, np.int64)
        self._candidate = np.zeros(rows, np.uint32)
        self._visit_steps = np.zeros(rows, np.uint32)
        self._visit_tokens = np.zeros(rows, np.uint32)
        self._draw = np.zeros(rows, np.float64)
        self._threshold = np.zeros(rows, np.float64)
        self._entropy = np.full(rows, np.nan, np.float32)
        self._log_sum_exp = np.full(rows, np.nan, np.float32)
        self._extra = np.full(rows, np.nan, np.float32)
        self._top_logits = np.zeros((rows, top), np.float32)
        self._top_ids = np.zeros((rows, top), np.uint32)
        self._hidden = np.zeros((rows, hidden), np.float32)
        self._embedding = np.zeros((rows, embedding), np.float32)
        self._state = np.zeros((rows, state), np.float64)
        self._decision = np.zeros(rows, np.int64)
        self._drop = np.zeros(rows, np.bool_)
        self._score = np.zeros(rows, np.float32)

    def __len__(self) -> int:
        return self.size

    @property
    def request(self) -> NDArray[np.uint64]:
        """Number of the request."""
        return self._request[: self.size]

    @property
    def position(self) -> NDArray[np.int64]:
        """Index of the candidate in the committed stream."""
        return self._position[: self.size]

    @property
    def prompt_tokens(self) -> NDArray[np.int64]:
        """Length of the prompt."""
        return self._prompt_tokens[: self.size]

    @property
    def candidate(self) -> NDArray[np.uint32]:
        """The candidate token."""
        return self._candidate[: self.size]

    @property
    def visit_steps(self) -> NDArray[np.uint32]:
        """Steps that this model has made since the request came to it, before this one."""
        return self._visit_steps[: self.size]

    @property
    def visit_tokens(self) -> NDArray[np.uint32]:
        """Tokens committed by those steps."""
        return self._visit_tokens[: self.size]

    @property
    def draw(self) -> NDArray[np.float64]:
        """A draw between 0 and 1, the same for a request and position whatever the schedule."""
        return self._draw[: self.size]

    @property
    def threshold(self) -> NDArray[np.float64]:
        """The request's own threshold (``routing_threshold``); NaN without one."""
        return self._threshold[: self.size]

    @property
    def entropy(self) -> NDArray[np.float32]:
        """Entropy of the softmax in nats."""
        return self._entropy[: self.size]

    @property
    def log_sum_exp(self) -> NDArray[np.float32]:
        """Logarithm of the sum of the exponentials of all logits."""
        return self._log_sum_exp[: self.size]

    @property
    def extra(self) -> NDArray[np.float32]:
        """Logit of the extra row."""
        return self._extra[: self.size]

    @property
    def top_logits(self) -> NDArray[np.float32]:
        """The largest logits, falling, ``[rows, k]``."""
        return self._top_logits[: self.size]

    @property
    def top_ids(self) -> NDArray[np.uint32]:
        """Their token ids."""
        return self._top_ids[: self.size]

    @property
    def hidden(self) -> NDArray[np.float32]:
        """Hidden states, ``[rows, d_model]``."""
        return self._hidden[: self.size]

    @property
    def embedding(self) -> NDArray[np.float32]:
        """Input embeddings of the candidates, ``[rows, d_model]``."""
        return self._embedding[: self.size]

    @property
    def state(self) -> NDArray[np.float64]:
        """What the method keeps of each request, ``[rows, state_size]``: zeros at first, travels with the request."""
        return self._state[: self.size]

    @property
    def decision(self) -> NDArray[np.int64]:
        """Written by ``route``: the index of the model that writes on, STAY (the default), RETRY or FINISH."""
        return self._decision[: self.size]

    @property
    def drop(self) -> NDArray[np.bool_]:
        """Written by ``route``: whether the candidate is dropped at a switch."""
        return self._drop[: self.size]

    @property
    def score(self) -> NDArray[np.float32]:
        """Written by ``route``, if it compares a number: for traces."""
        return self._score[: self.size]


class RoutingPolicy:
    """A routing method. Subclass it, write :meth:`route`, and give an object to ``TokenRoutingEngine(policy=...)``.

    A row's decision must be a function of that row alone: who else is in the batch depends on the schedule. Keep what a
    request needs later in ``batch.state`` and not in the object.
    """

    #: Numbers that are kept of every request, in ``batch.state``.
    state_size: int = 0
    #: Whether requests may bring a threshold of their own.
    takes_threshold: bool = False

    def setup(self, models: List[str], entry: int, vocab: int) -> None:
        """Called once, before the engine starts: names of the models, the index at which requests start, the vocabulary."""

    def needs(self, model: int) -> Needs:
        """Signals of ``model`` that :meth:`route` reads."""
        return Needs()

    def route(self, batch: BatchView) -> None:
        """Writes ``batch.decision`` (and ``batch.drop``) after a step of ``batch.model``."""
        raise NotImplementedError("a routing policy needs `route`")

    def send(self, row: SentRow, to: int) -> bool:
        """Whether the candidate of a row that switches is committed. Called for every switch if it is overridden;
        ``batch.drop`` says the same for a whole batch."""
        return True

    def receive(self, log: NDArray[np.uint32], delta: NDArray[np.uint32]) -> Any:
        """The tokens to append to the receiving model's ``log`` when ``delta`` arrives. Called for every handoff if it is
        overridden."""
        return delta
