"""What each route takes, as far as it can be told from a body alone (seen with vLLM 0.32.0)."""

from vllm_mm.sim.bodies import as_object
from vllm_mm.sim.errors import invalid, refused
from vllm_mm.sim.fields import (
    Table,
    either,
    flag,
    items,
    mapping,
    number,
    one_of,
    or_null,
    shape,
    text,
    whole,
)

_NUMBER, _WHOLE, _TEXT, _FLAG = or_null(number), or_null(whole()), or_null(text), or_null(flag)
_SEED = or_null(whole(-(2**63), 2**63 - 1))


def _response_format(name: str, value: object) -> None:
    kind = one_of("text", "json_object", "json_schema", "structural_tag")
    shape(("type",), type=kind)(name, value)
    found = as_object(value) or {}
    if found.get("type") == "json_schema" and found.get("json_schema") is None:
        message = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise refused(message, "response_format")


def _part(name: str, value: object) -> None:
    found = as_object(value)
    if found is None:
        raise invalid(name, "Input should be a valid dictionary", value, "dict_type")
    if found.get("type") in {"text", "input_text"}:
        shape(("text",), text=text)(name, value)
    elif "image" in str(found.get("type")):
        raise refused("this is not a multimodal model")


_CONTENT = or_null(either(text, items(_part)))
_BLOCKS = either(
    text,
    items(shape(("type",), type=one_of("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"))),
)
_ROLE = one_of("user", "assistant", "system")
SAMPLING: Table = {
    "temperature": _NUMBER, "top_p": _NUMBER, "min_p": _NUMBER, "presence_penalty": _NUMBER, "frequency_penalty": _NUMBER,
    "repetition_penalty": _NUMBER, "top_k": _WHOLE, "seed": _SEED, "min_tokens": whole(), "max_tokens": _WHOLE,
    "stop": or_null(either(items(text), text)), "stop_token_ids": or_null(items(whole())), "ignore_eos": flag,
    "logit_bias": or_null(mapping(number)), "bad_words": items(text), "skip_special_tokens": flag,
    "spaces_between_special_tokens": flag, "include_stop_str_in_output": flag, "user": _TEXT, "priority": whole(),
    "stream": _FLAG, "allowed_token_ids": or_null(items(whole())), "return_token_ids": _FLAG, "echo": _FLAG,
    "add_special_tokens": flag, "response_format": or_null(_response_format),
}  # fmt: skip
CHAT: Table = {
    **SAMPLING, "messages": items(shape((), role=text, content=_CONTENT)), "n": _WHOLE, "max_completion_tokens": _WHOLE,
    "logprobs": _FLAG, "tools": or_null(items(shape(("function",), function=shape(("name",), name=text)))),
    "add_generation_prompt": flag, "continue_final_message": flag, "chat_template": _TEXT,
    "chat_template_kwargs": or_null(mapping()), "parallel_tool_calls": _FLAG, "metadata": or_null(mapping()),
}  # fmt: skip
TEXT: Table = {**SAMPLING, "n": whole(), "suffix": _TEXT}
RESPONSES: Table = {
    "temperature": _NUMBER, "top_p": _NUMBER, "max_output_tokens": _WHOLE, "instructions": _TEXT, "previous_response_id": _TEXT,
    "metadata": or_null(mapping()), "truncation": or_null(one_of("auto", "disabled")), "top_logprobs": _WHOLE,
    "max_tool_calls": _WHOLE, "stream": _FLAG, "user": _TEXT, "parallel_tool_calls": _FLAG,
    "text": or_null(shape((), format=or_null(shape(("type",), type=one_of("text", "json_object", "json_schema"))))),
    "tools": items(shape(("type",))),
    "tool_choice": either(one_of("none", "auto", "required"), mapping()),
    "include": or_null(items(one_of(
        "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
        "message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content",
    ))),
}  # fmt: skip
_TOOL = shape(("name", "input_schema"), name=text, input_schema=mapping())
COUNT: Table = {
    "messages": items(shape(("role", "content"), role=_ROLE, content=_BLOCKS)),
    "system": or_null(either(text, items(shape()))), "tools": or_null(items(_TOOL)),
    "tool_choice": or_null(shape(("type",), type=one_of("auto", "any", "tool", "none"))),
}  # fmt: skip
MESSAGES: Table = {
    **COUNT, "max_tokens": whole(), "temperature": _NUMBER, "top_p": _NUMBER, "top_k": _WHOLE,
    "stop_sequences": or_null(items(text)), "metadata": or_null(mapping()), "stream": _FLAG,
}  # fmt: skip
TOKENIZE: Table = {
    "add_special_tokens": flag, "return_token_strs": _FLAG, "add_generation_prompt": flag, "continue_final_message": flag,
    "chat_template": _TEXT,
}  # fmt: skip
POOLING: Table = {
    "truncate_prompt_tokens": or_null(whole(-1)), "user": _TEXT, "use_activation": _FLAG, "add_special_tokens": flag,
    "priority": whole(), "task": or_null(one_of(
        "embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify")),
    "encoding_format": or_null(one_of("float", "base64", "bytes", "bytes_only")),
}  # fmt: skip
_DOCUMENT = either(text, items(either(text, items(whole()), shape(("content",)))), shape(("content",)))
SCORE: Table = {**POOLING, **dict.fromkeys(("documents", "items", "data_2", "text_2", "queries", "data_1", "text_1"), or_null(_DOCUMENT))}  # fmt: skip
