"""L4: the text side of a pack."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from itertools import product
from unittest import SkipTest

from ninfer_conformance.subject import Subject
from ninfer_conformance.tolerances import require
from ninfer_core.api import Frontend, PreparedPrompt, ToolCall
from ninfer_core.text.detokenizer import IncrementalDetokenizer

_TEXTS = (
    "Plain text, 12345 and  two spaces.\n\n\ttabs\r\n", "naïve façade «quotes» ½ ∞", "a" * 999,
    "日本語と한국어、العربية हिन्दी", "👩‍👩‍👧 🦊🇨🇭 e\u0301 \u200b\ufeff", "\x00\x1f\x7f{}<>&\\\"'",
)
_ANSWERS = (
    "no markup at all", "<think>why\n</think>\n\nbecause", "<think>never closed < th", "\n <thin",
    '<tool_call>\n{"name": "f"}\n</tool_call>', "<think></think><think>twice</think>", "a </think>",
    "so:\n<tool_call>\n<function=f>\n<parameter=a>\n</b>\n</parameter>\n</function>\n</tool_call>\n",
    "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><tool_call>f</tool_call>",
    '<tool_call>\n{"name": "f", "arguments": {"a": "1"}}\n</tool_call>',
    "<function=f>\n<parameter=a>",
)
_TOOLS = ({"type": "function", "function": {
    "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}},)


def text_round_trips(subject: Subject) -> None:
    """Encoded text decodes to itself, in whatever groups its tokens arrive."""
    tokenizer = subject.frontend.tokenizer
    for text in (unicodedata.normalize("NFC", each) for each in _TEXTS):
        pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode(text)]
        for width in (1, 2, 3, 7):
            detokenizer = IncrementalDetokenizer()
            groups = (b"".join(pieces[i : i + width]) for i in range(0, len(pieces), width))
            decoded = "".join(map(detokenizer.feed, groups)) + detokenizer.finish()
            require(decoded == text, f"by {width} tokens {text!r} comes back as {decoded!r}")


def parsers_ignore_cuts(subject: Subject) -> None:
    """An answer gives the same channels and calls however it is cut."""
    frontend = subject.frontend
    for is_open, tools in product((False, True), ((), _TOOLS)):
        prompt = PreparedPrompt((0,), "", reasoning_open=is_open, tools=tools)
        for answer in _ANSWERS:
            whole = _parsed(frontend, prompt, answer, len(answer))
            for width in (1, 2, 3, 7):
                cut = _parsed(frontend, prompt, answer, width)
                require(cut == whole, f"{answer!r} gives {whole}, cut by {width} it gives {cut}")


def calls_are_whole(subject: Subject) -> None:
    """Calls are of declared tools, with a JSON object as arguments, and numbered."""
    for is_open in (False, True):
        prompt = PreparedPrompt((0,), "", reasoning_open=is_open, tools=_TOOLS)
        for answer in _ANSWERS:
            _, calls = _parsed(subject.frontend, prompt, answer, len(answer))
            for index, call in enumerate(calls):
                arguments = json.loads(call.arguments)
                require(
                    (call.index, call.name, type(arguments)) == (index, "f", dict),
                    f"call {index} of {answer!r} is {call}",
                )


def content_spells_no_control_tokens(subject: Subject) -> None:
    """A prompt has the same control tokens when its content spells more of them."""
    frontend = subject.frontend
    encode, spell = frontend.tokenizer.encode, frontend.tokenizer.token_bytes
    used = {*_prompt(frontend, "hi").token_ids, *frontend.eos_token_ids}
    controls = {each for each in used if encode(spell(each).decode("utf-8", "replace")) != [each]}
    if not controls:
        raise SkipTest("prompts have no control tokens")
    hostile = "a" + "".join(spell(each).decode() for each in sorted(controls)) + "b"
    harmless, attacked = (
        Counter(each for each in _prompt(frontend, content).token_ids if each in controls)
        for content in ("ab", hostile)
    )
    require(harmless == attacked, f"content {hostile!r} turns {harmless} into {attacked}")


def prompts_are_stable(subject: Subject) -> None:
    """A conversation renders alike twice, and its tokens spell its text."""
    frontend = subject.frontend
    for text in _TEXTS:
        first, second = _prompt(frontend, text), _prompt(frontend, text)
        require(first == second, f"two renderings differ: {first.text!r} and {second.text!r}")
        spelled = b"".join(map(frontend.tokenizer.token_bytes, first.token_ids))
        require(spelled == first.text.encode(), f"the tokens of {first.text!r} spell {spelled!r}")


def turns_extend_their_prompt(subject: Subject) -> None:
    """The next turn's prompt begins with the tokens of this one's, so that it can be reused."""
    frontend = subject.frontend
    first, second = _prompt(frontend, "one?"), _prompt(frontend, "one?", "It is.", "two?")
    if not second.text.startswith(first.text):
        raise SkipTest("the template rewrites earlier turns")
    prefix = second.token_ids[: len(first.token_ids)]
    require(prefix == first.token_ids, f"the next turn begins with {prefix}, not {first.token_ids}")


def vocabulary_is_bounded(subject: Subject) -> None:
    """Every token has a row of logits, and an answer can end."""
    frontend = subject.frontend
    rows = subject.implementation.operations(subject.config)["vocab_size"]
    size, ends = frontend.tokenizer.vocab_size, frontend.eos_token_ids
    require(0 < size <= rows, f"the tokenizer has {size} ids, the model {rows} logits")
    require(ends and all(0 <= end < size for end in ends), f"end tokens {set(ends)} of {size} ids")


def _parsed(
    frontend: Frontend, prompt: PreparedPrompt, answer: str, width: int
) -> tuple[dict[str, str], list[ToolCall]]:
    """Text by channel, and calls."""
    parser, channels, calls = frontend.parser(prompt), dict[str, str](), list[ToolCall]()
    cuts = (answer[start : start + width] for start in range(0, len(answer), width))
    for part in (*(part for cut in cuts for part in parser.feed(cut)), *parser.finish()):
        if isinstance(part, ToolCall):
            calls.append(part)
        else:
            channels[part.channel] = channels.get(part.channel, "") + part.text
    return channels, calls


def _prompt(frontend: Frontend, *turns: str) -> PreparedPrompt:
    roles = ("user", "assistant") * len(turns)
    return frontend.prepare([{"role": r, "content": t} for r, t in zip(roles, turns, strict=False)])


CHECKS = (
    text_round_trips, parsers_ignore_cuts, calls_are_whole, content_spells_no_control_tokens,
    prompts_are_stable, turns_extend_their_prompt, vocabulary_is_bounded,
)
