"""The engine: it takes prompts and returns texts."""

from __future__ import annotations

import asyncio
import json
import os
import weakref
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _json
from ._native import NativeEngine, NativeStream
from .errors import EngineClosedError, GenerationError, InvalidRequestError
from .routing import RoutingPolicy

Prompt = Union[str, Sequence[int]]
Result = Dict[str, Any]
_Chunk = Tuple[str, List[int], List[int], Optional[str]]


class TokenRoutingEngine:
    """A routed system in this process.

    ``config`` is the path of a YAML file, or the configuration itself as a mapping. ``policy`` is a routing method written
    in Python that replaces the configured one.

    Use it in a ``with`` statement, or call :meth:`close`. Several threads may call all methods; their requests are batched
    together. The engine releases the interpreter's lock while it works.
    """

    def __init__(
        self, config: Union[str, "os.PathLike[str]", Mapping[str, Any]], *, policy: Optional[RoutingPolicy] = None
    ) -> None:
        is_path = not isinstance(config, Mapping)
        # Every JSON text is also YAML.
        text = os.fspath(config) if not isinstance(config, Mapping) else _json.dumps(dict(config))
        self._native = NativeEngine(text, is_path, policy)
        self._models: List[str] = self._native.models()
        self._emulated: bool = json.loads(self._native.info())["emulated"]
        # Also closes the engine when the interpreter exits, while its threads can still run.
        self._finalizer = weakref.finalize(self, self._native.close)

    def __enter__(self) -> "TokenRoutingEngine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the engine. Open requests end with an error."""
        self._finalizer()

    def drain(self, timeout: float) -> bool:
        """Refuses new requests, and returns whether the open ones ended within ``timeout`` seconds."""
        return self._native.drain(timeout)

    @property
    def models(self) -> List[str]:
        """Names of the models, in order."""
        return list(self._models)

    def info(self) -> Dict[str, Any]:
        """Decisions made at launch: threads, thresholds, limits, warnings."""
        return json.loads(self._native.info())

    def stats(self) -> Dict[str, Any]:
        """Counters of every model since launch: steps, batch sizes, times, transitions, commits."""
        return json.loads(self._native.stats())

    def generate(
        self,
        prompt: Union[Prompt, Sequence[Prompt], None] = None,
        *,
        messages: Optional[Sequence[Mapping[str, Any]]] = None,
        sampling_params: Union[Mapping[str, Any], Sequence[Mapping[str, Any]], None] = None,
        stream: bool = False,
    ) -> Any:
        """Decodes one request, or several requests together.

        ``prompt`` is a text or a list of token ids (emulated models read only ids), or a list of several prompts.
        ``messages`` is a conversation for the chat template. ``sampling_params`` may have ``temperature``, ``top_k``, ``top_p``, ``min_p``,
        ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``seed``, ``max_new_tokens``,
        ``min_new_tokens``, ``ignore_eos``, ``stop``, ``stop_token_ids``, ``routing_threshold``, ``routing_seed``. For a
        list of prompts it may be a list of the same length.

        Returns a dict, or a list of dicts for a list of prompts: ``text``, ``output_ids``, ``origins`` (the model that wrote each
        token), ``finish_reason``, ``prompt_tokens``, ``completion_tokens``, ``tokens_by_model``, ``handoffs``,
        ``queue_wait_s``, ``buffer_wait_s``. With ``stream``, it returns an iterator over chunks of one request. Each
        chunk has its ``text``, ``output_ids`` and ``origins``; the last one also has the other keys. Leaving the iterator
        cancels the request.
        """
        if stream:
            return self._stream(self._submit_one(prompt, messages, sampling_params))
        if messages is None and _is_list(prompt):
            streams = self._submit_all(prompt, sampling_params)
            return [self._piece(one.collect()) for one in streams]
        return self._piece(self._submit_one(prompt, messages, sampling_params).collect())

    async def async_generate(
        self,
        prompt: Union[Prompt, Sequence[Prompt], None] = None,
        *,
        messages: Optional[Sequence[Mapping[str, Any]]] = None,
        sampling_params: Union[Mapping[str, Any], Sequence[Mapping[str, Any]], None] = None,
        stream: bool = False,
    ) -> Any:
        """Like :meth:`generate`, for an event loop. With ``stream``, the awaited value is an asynchronous iterator. Cancelling
        the task cancels the request."""
        if stream:
            return self._async_stream(self._submit_one(prompt, messages, sampling_params))
        if messages is None and _is_list(prompt):
            streams = self._submit_all(prompt, sampling_params)
            return list(await asyncio.gather(*(self._async_result(one) for one in streams)))
        return await self._async_result(self._submit_one(prompt, messages, sampling_params))

    def _submit_one(self, prompt: Any, messages: Any, sampling_params: Any) -> NativeStream:
        if (prompt is None) == (messages is None):
            raise InvalidRequestError("exactly one of `prompt` and `messages` is needed")
        if messages is None and _is_list(prompt):
            raise InvalidRequestError("`stream` is for one prompt, a list was given")
        if sampling_params is not None and not isinstance(sampling_params, Mapping):
            raise InvalidRequestError("`sampling_params` of one prompt is one mapping")
        params = _json.dumps(dict(sampling_params or {}))
        if messages is not None:
            return self._native.submit(_json.dumps(list(messages)), params, True)
        return self._native.submit(prompt if isinstance(prompt, str) else [int(token) for token in prompt], params)

    def _submit_all(self, prompts: Any, sampling_params: Any) -> List[NativeStream]:
        shared = sampling_params is None or isinstance(sampling_params, Mapping)
        params = [sampling_params] * len(prompts) if shared else list(sampling_params)
        if len(params) != len(prompts):
            raise InvalidRequestError(f"{len(params)} `sampling_params` for {len(prompts)} prompts")
        return [self._submit_one(prompt, None, one) for prompt, one in zip(prompts, params)]

    def _piece(self, chunk: _Chunk) -> Result:
        """Converts a chunk to the form that users see. Raises the error that ended the request, if any."""
        text, ids, origins, end = chunk
        result: Result = {
            "text": None if self._emulated else text,
            "output_ids": ids,
            "origins": [self._models[origin] for origin in origins],
        }
        if end is not None:
            result.update(self._end(json.loads(end)))
        return result

    def _end(self, end: Dict[str, Any]) -> Result:
        error = end.pop("error")
        if error is not None:
            stopped = error == "the engine has stopped"
            raise EngineClosedError(error) if stopped else GenerationError(error)
        end["completion_tokens"] = sum(end["tokens_by_model"])
        end["tokens_by_model"] = dict(zip(self._models, end["tokens_by_model"]))
        return end

    def _stream(self, stream: NativeStream) -> Iterator[Result]:
        ended = False
        try:
            while not ended and (chunk := stream.next()) is not None:
                ended = chunk[3] is not None
                yield self._piece(chunk)
        finally:
            if not ended:
                stream.cancel()

    async def _async_pieces(self, stream: NativeStream) -> AsyncIterator[_Chunk]:
        loop = asyncio.get_running_loop()
        chunks: "asyncio.Queue[Optional[_Chunk]]" = asyncio.Queue()
        self._native.forward(stream, lambda chunk: loop.call_soon_threadsafe(chunks.put_nowait, chunk))
        ended = False
        try:
            while not ended and (chunk := await chunks.get()) is not None:
                ended = chunk[3] is not None
                yield chunk
        finally:
            if not ended:
                stream.cancel()

    async def _async_stream(self, stream: NativeStream) -> AsyncIterator[Result]:
        async for chunk in self._async_pieces(stream):
            yield self._piece(chunk)

    async def _async_result(self, stream: NativeStream) -> Result:
        text: List[str] = []
        ids: List[int] = []
        origins: List[int] = []
        end: Optional[str] = None
        async for chunk in self._async_pieces(stream):
            text.append(chunk[0])
            ids.extend(chunk[1])
            origins.extend(chunk[2])
            end = chunk[3]
        if end is None:
            raise EngineClosedError("the engine has stopped")
        return self._piece(("".join(text), ids, origins, end))


def _is_list(prompt: Any) -> bool:
    """Whether this is a list of prompts, and not one prompt of token ids."""
    if prompt is None or isinstance(prompt, str):
        return False
    return len(prompt) > 0 and (isinstance(prompt[0], str) or hasattr(prompt[0], "__len__"))
