"""Embedding, scoring, reranking, classification."""

import base64
import struct
import time

from vllm_mm.sim import errors, surface
from vllm_mm.sim.bodies import Body, as_list, as_object, as_tokens, chat_prompt, known, text_of
from vllm_mm.sim.service import Call, Service, usage_of
from vllm_mm.sim.text import count_tokens, detokenize, embedding, score

_LABELS = 2


async def embeddings(call: Call) -> None:
    """POST /v1/embeddings: a text, tokens, or a list of either; or messages."""
    service, body = call.service, call.service.body(call.request, surface.POOLING)
    texts = [chat_prompt(body)] if "messages" in body else _texts(body, "input")
    kind = body.get("encoding_format") or "float"
    if kind not in {"float", "base64"}:
        raise errors.invalid("encoding_format", "Input should be 'float' or 'base64'", kind, "literal_error")
    service.check_model(body, pooling=True)
    tokens = await _compute(service, body, texts)
    vectors = [embedding(service.name, text, _dimensions(service, body), garbled=_garbled(service)) for text in texts]
    data = [
        {"index": index, "object": "embedding", "embedding": vector if kind == "float" else _base64(vector)}
        for index, vector in enumerate(vectors)
    ]
    _answer(call, body, "embd", data, tokens)


async def pooling(call: Call) -> None:
    """POST /pooling: the vector of each input."""
    service, body = call.service, call.service.body(call.request, surface.POOLING)
    texts = [chat_prompt(body)] if "messages" in body else _texts(body, "input")
    service.check_model(body, pooling=True)
    tokens = await _compute(service, body, texts)
    size = service.options.profile.dimensions if service.options.profile.task == "embed" else _LABELS
    data = [
        {"index": index, "object": "pooling", "data": embedding(service.name, text, size, garbled=_garbled(service))}
        for index, text in enumerate(texts)
    ]
    _answer(call, body, "pool", data, tokens)


async def classify(call: Call) -> None:
    """POST /classify: the probabilities of two labels for each input."""
    service, body = call.service, call.service.body(call.request, surface.POOLING)
    texts = [chat_prompt(body)] if "messages" in body else _texts(body, "input")
    service.check_model(body, pooling=True)
    tokens = await _compute(service, body, texts)
    data: list[Body] = []
    for index, text in enumerate(texts):
        second = score(service.name, "", text, garbled=_garbled(service))
        probs = [1.0 - second, second]
        data.append({"index": index, "label": f"LABEL_{int(second > 0.5)}", "probs": probs, "num_classes": _LABELS})
    _answer(call, body, "classify", data, tokens)


async def scores(call: Call) -> None:
    """POST /score: one query against each text, or pairs."""
    service, body = call.service, call.service.body(call.request, surface.SCORE)
    for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")):
        if first in body and second in body:
            queries, documents = _texts(body, first), _texts(body, second)
            break
    else:
        raise errors.missing("queries", body)
    service.check_model(body, pooling=True)
    if len(queries) not in {1, len(documents)}:
        raise errors.refused("Input lengths must be either 1:1, 1:N or N:N")
    if len(queries) == 1:
        queries = queries * len(documents)
    pairs = list(zip(queries, documents, strict=True))
    tokens = await _compute(service, body, [f"{query}\n{document}" for query, document in pairs])
    data = [
        {"index": index, "object": "score", "score": score(service.name, query, document, garbled=_garbled(service))}
        for index, (query, document) in enumerate(pairs)
    ]
    _answer(call, body, "score", data, tokens)


async def rerank(call: Call) -> None:
    """POST /rerank: documents by relevance, the best first."""
    service, body = call.service, call.service.body(call.request, surface.SCORE)
    query = body.get("query")
    if not isinstance(query, str):
        raise errors.invalid("query", "Input should be a valid string", query, "string_type")
    documents = _texts(body, "documents")
    top = body.get("top_n") or 0
    if isinstance(top, bool) or not isinstance(top, int):
        raise errors.invalid("top_n", "Input should be a valid integer", top, "int_type")
    if top < 0:
        raise errors.invalid("top_n", "Input should be greater than or equal to 0", top, "greater_than_equal")
    service.check_model(body, pooling=True)
    tokens = await _compute(service, body, [f"{query}\n{document}" for document in documents])
    results = [
        {
            "index": index,
            "document": {"text": document, "multi_modal": None},
            "relevance_score": score(service.name, query, document, garbled=_garbled(service)),
        }
        for index, document in enumerate(documents)
    ]
    results.sort(key=_relevance, reverse=True)
    call.writer.json(
        200,
        {
            "id": service.request_id(call.request, "score"),
            "model": service.name_for(body),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results[: top or len(results)],
        },
    )


def _relevance(result: Body) -> float:
    return result["relevance_score"]


async def _compute(service: Service, body: Body, texts: list[str]) -> int:
    """Let the engine take in the texts; returns their tokens. Raises ApiError when one is too long."""
    total = 0
    if int(body.get("truncate_prompt_tokens") or 0) > service.options.max_model_len:
        raise errors.refused(
            "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
        )
    for text in texts:
        tokens = max(1, count_tokens(text))
        if tokens > service.options.max_model_len:
            raise errors.refused(
                f"This model's maximum context length is {service.options.max_model_len} tokens. However, your prompt "
                f"contains {tokens} input tokens. Please reduce the length of the input prompt.",
                "input_tokens",
            )
        total += tokens
        await service.take_in(tokens)
    return total


def _texts(body: Body, name: str) -> list[str]:
    """One or more texts (or token lists). Raises ApiError."""
    value: object = body.get(name)
    if isinstance(value, str):
        return [value]
    if tokens := as_tokens(value):
        return [detokenize(known(tokens))]
    items = as_list(value)
    if not items:
        if value is None:
            raise errors.missing(name, body)
        if value == []:
            raise errors.refused(
                "At least one text_pair element must be given"
                if name == "documents"
                else "You must pass at least one prompt"
            )
        raise errors.invalid(name, "Input should be a valid string", value, "string_type")
    texts: list[str] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
        elif tokens := as_tokens(item):
            texts.append(detokenize(known(tokens)))
        elif (part := as_object(item)) is not None:
            texts.append(text_of([part] if "type" in part else part.get("text") or part.get("content")))
        else:
            raise errors.invalid(name, "Input should be a valid string", item, "string_type")
    return texts


def _dimensions(service: Service, body: Body) -> int:
    """The length of the vectors; a request may ask for fewer. Raises ApiError."""
    most = service.options.profile.dimensions
    asked = body.get("dimensions")
    if asked is None:
        return most
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= most:
        raise errors.refused(f"dimensions must be between 1 and {most}, got {asked}.", "dimensions")
    return asked


def _garbled(service: Service) -> bool:
    return service.engine.stats.garbled


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def _answer(call: Call, body: Body, prefix: str, data: list[Body], tokens: int) -> None:
    call.writer.json(
        200,
        {
            "id": call.service.request_id(call.request, prefix),
            "object": "list",
            "created": int(time.time()),
            "model": call.service.name_for(body),
            "data": data,
            "usage": usage_of(tokens, None),
        },
    )
