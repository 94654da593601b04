"""Routing methods written in Python."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

#: Decisions other than the index of the model that continues.
STAY = -1
RETRY = -2
FINISH = -3


class Needs(NamedTuple):
    """The signals of a model that :meth:`RoutingPolicy.route` reads. The engine computes no others."""

    #: ``entropy`` and ``log_sum_exp``.
    softmax: bool = False
    #: The number of largest logits, in ``top_logits`` and ``top_ids``.
    top_logits: int = 0
    #: The hidden state that is the input of the output matrix.
    hidden: bool = False
    #: The input embedding of the candidate.
    embedding: bool = False
    #: A row of the output matrix that is not a token. Its logit is ``extra``.
    extra_row: Optional[int] = None


class SentRow(NamedTuple):
    """What :meth:`RoutingPolicy.send` knows about a request that switches."""

    request: int
    model: int
    position: int
    candidate: int
    score: float


class BatchView:
    """The rows of one step that have a candidate. Every property is a NumPy array over the rows.

    The arrays are views of memory that the engine fills for every step. Nothing is copied for Python, and the engine reads
    ``decision``, ``drop``, ``score`` and ``state`` in place. The arrays are valid only until ``route`` returns. Signals that
    :meth:`RoutingPolicy.needs` did not ask for have width zero or meaningless values.
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
        """Steps that this model has made since the request arrived at it, before this step."""
        return self._visit_steps[: self.size]

    @property
    def visit_tokens(self) -> NDArray[np.uint32]:
        """Tokens committed by those steps."""
        return self._visit_tokens[: self.size]

    @property
    def draw(self) -> NDArray[np.float64]:
        """A random number between 0 and 1. It depends on the request and the position, not on the schedule."""
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
        """The largest logits in descending order, ``[rows, k]``."""
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
        """What the method stores for each request, ``[rows, state_size]``. It starts as zeros and travels with the request."""
        return self._state[: self.size]

    @property
    def decision(self) -> NDArray[np.int64]:
        """Written by ``route``: the index of the model that continues, STAY (the default), RETRY or FINISH."""
        return self._decision[: self.size]

    @property
    def drop(self) -> NDArray[np.bool_]:
        """Written by ``route``: whether the candidate is dropped at a switch."""
        return self._drop[: self.size]

    @property
    def score(self) -> NDArray[np.float32]:
        """Written by ``route`` for traces, if the method compares a number."""
        return self._score[: self.size]


class RoutingPolicy:
    """A routing method. Subclass it, write :meth:`route`, and pass an instance to ``TokenRoutingEngine(policy=...)``.

    The decision for a row must depend on that row alone, because the other rows of the batch depend on the schedule. Store
    what a request needs later in ``batch.state``, not in the instance.
    """

    #: How many numbers ``batch.state`` stores for every request.
    state_size: int = 0
    #: Whether requests may have their own threshold.
    takes_threshold: bool = False

    def setup(self, models: List[str], entry: int, vocab: int) -> None:
        """Called once, before the engine starts, with the names of the models, the index of the entry model and the size of
        the vocabulary."""

    def needs(self, model: int) -> Needs:
        """The signals of ``model`` that :meth:`route` reads."""
        return Needs()

    def route(self, batch: BatchView) -> None:
        """Writes ``batch.decision`` (and ``batch.drop``) after a step of ``batch.model``."""
        raise NotImplementedError("a routing policy needs `route`")

    def send(self, row: SentRow, to: int) -> bool:
        """Whether the candidate of a row that switches is committed. Called for every switch if it is overridden;
        ``batch.drop`` is the equivalent for a whole batch."""
        return True

    def receive(self, log: NDArray[np.uint32], delta: NDArray[np.uint32]) -> Any:
        """Returns the tokens to append to the receiving model's ``log`` when ``delta`` arrives. Called for every handoff if
        it is overridden."""
        return delta
