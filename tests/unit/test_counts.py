"""Counting without the model's tokenizer: what is read, how much is counted, and what reported counts say."""

import base64
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.context.counts import (
    CHUNK_CHARS,
    CONSTANT_LIMIT_TOKENS,
    Calibration,
    Reading,
    Sample,
    Size,
    add_sizes,
    apportion,
    calibrate,
    count_texts,
    measure_texts,
    read_piece,
)
from antiphon.context.image_costs import (
    ASSUMED_SIZE,
    DEFAULT_BILLING,
    bill_image,
    find_billing,
    read_data_url_size,
    read_image_size,
)
from antiphon.protocol.count_request import COUNT_FIELDS, decode_count_request, describe_count_request
from antiphon.protocol.errors import RequestError


def encode(*messages: Any) -> bytes:
    """Messages as a piece of a transcript."""
    return b",".join(msgspec.json.encode(message) for message in messages)


def make_png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(5)


def make_jpeg(width: int, height: int, notes: int = 0) -> bytes:
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", 1002) + bytes(1000) for _ in range(notes))
    return b"\xff\xd8" + segments + b"\xff\xc0" + struct.pack(">HBHH", 11, 8, height, width) + bytes(8)


def make_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


# What is read


def test_a_message_is_read_without_its_keys_and_marks() -> None:
    """Ours: a template shows a model the text, and marks of its own."""
    piece = encode(
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "warm"}]},
    )
    assert read_piece(piece, DEFAULT_BILLING) == Reading(["hi", "", "f", '{"a":1}', "warm"], 3, 0)


def test_an_item_is_read_like_a_message() -> None:
    """Responses-API items: what a backend that speaks Responses is sent."""
    piece = encode(
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 900},
        {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls", "-l"]}},
    )
    assert read_piece(piece, DEFAULT_BILLING) == Reading(["a", "ls", "-l"], 3, 0)


@pytest.mark.parametrize("text", ["plain words", "{broken", "\xff", "123", '"quoted"', "[[[[", "a, b"])
def test_what_is_no_message_is_text(text: str) -> None:
    """Ours: a text is counted as it stands, whatever it looks like."""
    reading = read_piece(text.encode(), DEFAULT_BILLING)
    assert "".join(reading.texts).strip('"') == text.strip('"')
    assert reading.messages == 0


@given(st.binary(max_size=60))
def test_any_bytes_can_be_read(piece: bytes) -> None:
    """Ours: no text of a client's stops a count."""
    assert read_piece(piece, DEFAULT_BILLING).messages >= 0


def test_images_are_billed_and_their_bytes_are_not_counted() -> None:
    """Both forms of an image: in a chat message, and in an item."""
    url = make_url(make_png(280, 280))
    chat = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, "detail": "high"}}]}
    item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}
    assert read_piece(encode(chat, item), DEFAULT_BILLING) == Reading([], 2, 200)


# Images


@pytest.mark.parametrize(
    "data",
    [
        make_png(640, 480),
        make_jpeg(640, 480),
        make_jpeg(640, 480, notes=20),
        b"GIF89a" + struct.pack("<HH", 640, 480),
        b"RIFF----WEBPVP8 " + bytes(10) + struct.pack("<HH", 640, 480),
        b"RIFF----WEBPVP8L" + bytes(5) + struct.pack("<I", 639 | 479 << 14),
        b"RIFF----WEBPVP8X" + bytes(8) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little"),
    ],
)
def test_the_size_of_an_image_is_read_from_its_head(data: bytes) -> None:
    """The formats' own specifications."""
    assert read_image_size(data) == (640, 480)
    assert read_data_url_size(make_url(data)) == (640, 480)


@given(st.binary(max_size=40).map(lambda tail: b"\xff\xd8" + tail) | st.binary(max_size=40))
def test_no_bytes_break_the_reading_of_a_size(data: bytes) -> None:
    """Ours: an image comes from a client."""
    size = read_image_size(data)
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    ("model", "size", "detail", "tokens"),
    [
        ("claude-sonnet-4-6", (1000, 1000), None, 1296),
        ("anthropic/claude-opus-5", (3000, 3000), None, 4784),
        ("gemini-3-pro", (50, 50), None, 1120),
        ("gemini-3-pro", (50, 50), "low", 280),
        ("gemini-2.5-flash", (768, 1536), None, 516),
        ("gpt-4o", (1024, 1024), None, 85 + 4 * 170),
        ("gpt-4o", (4096, 4096), "low", 85),
        ("gpt-5", (512, 512), None, 210),
        ("gpt-5.4", (1568, 1568), None, 1843),
        ("gpt-5.4", (1568, 1568), "original", 2881),
        ("o4-mini", (320, 320), None, 172),
        ("qwen3-vl", (280, 560), None, 200),
    ],
)
def test_an_image_costs_what_the_family_of_the_model_bills(
    model: str, size: tuple[int, int], detail: str | None, tokens: int
) -> None:
    """The vendors' published formulas."""
    assert bill_image(make_url(make_png(*size)), detail, find_billing(model)) == tokens


def test_an_image_of_unknown_size_is_taken_for_a_middling_one() -> None:
    """Ours: an address tells no size, and nothing costs nothing."""
    known = bill_image(make_url(make_png(*ASSUMED_SIZE)), None, DEFAULT_BILLING)
    for url in ("https://example.com/a.png", "data:image/png;base64,????", "data:image/png,abc", None):
        assert bill_image(url, None, DEFAULT_BILLING) == known


# How much is counted


def test_short_texts_are_counted_whole() -> None:
    """Ours: below the limit a count is the tokenizer's own."""
    texts = ["a b c", "", "d " * 5000]
    assert count_texts(texts, lambda text: text.count(" "), limit_chars=20_000) == ([2, 0, 5000], True)


def test_a_long_text_is_sampled_evenly_and_scaled() -> None:
    """Ours: the time is bounded, and the sample sees all of the text."""
    seen: list[str] = []

    def count(text: str) -> int:
        seen.append(text)
        return len(text) - text.count("a")

    text = "a" * 1_000_000 + "b" * 1_000_000
    (tokens,), whole = count_texts([text], count, limit_chars=200_000)
    assert whole
    assert sum(map(len, seen)) <= 200_000
    assert all(len(chunk) <= CHUNK_CHARS for chunk in seen)
    assert abs(tokens - 1_000_000) < 50_000


def test_what_is_not_counted_in_time_is_guessed_at_the_rate_of_the_rest() -> None:
    """Ours: an estimate ends."""
    calls = iter(range(10))
    counts, whole = count_texts(
        ["abcd", "abcdef", "abc"], len, limit_chars=100, is_late=lambda: next(calls) >= 1
    )
    assert (counts, whole) == ([4, 6, 3], False)
    assert count_texts(["abcd" * 5], len, limit_chars=100, is_late=lambda: True) == ([5], False)


# Calibration


def test_without_samples_a_model_counts_as_we_do() -> None:
    """Ours: the tokenizer's own count is the first guess."""
    assert calibrate([]) == Calibration()


def test_long_prompts_tell_the_ratio_and_short_ones_the_constant() -> None:
    """Ours: a template that adds 30 tokens to "hi" does not make every text six times as long."""
    samples = [Sample(Size(6), 36), Sample(Size(4000), 5230), Sample(Size(8000), 10430)]
    assert calibrate(samples).constant == pytest.approx(30, abs=2)
    assert calibrate(samples).ratio == pytest.approx(1.3, rel=0.01)
    assert calibrate(samples[:1]) == Calibration(1.0, constant=30)


def test_digits_and_other_scripts_have_rates_of_their_own() -> None:
    """Many tokenizers take each digit alone, and they differ most in other scripts than Latin."""
    prose, data, chinese = Size(3000, 20, 10), Size(3000, 2500, 0), Size(3000, 0, 6000)
    true = Calibration(1.1, 0.4, -0.12)
    found = calibrate([Sample(size, true.apply(size)) for size in (prose, data, chinese)])
    for size in (prose, data, chinese, Size(9000, 3000, 5000), Size(500, 0, 900, 1000)):
        assert found.apply(size) == pytest.approx(true.apply(size), rel=0.03)


def test_what_the_samples_do_not_show_is_not_guessed() -> None:
    """Ours: a model that was only ever given prose tells nothing about digits."""
    found = calibrate([Sample(Size(2000, 10, 0), 2400)])
    assert found.apply(Size(1000, 3000, 3000)) == pytest.approx(1200, rel=0.03)


def test_the_size_of_texts_is_told_in_digits_and_wide_bytes() -> None:
    """Ours: beside their tokens."""
    assert measure_texts(["1 harbour, 22 boats", "é中"], 9) == Size(9, 3, 3)
    assert add_sizes([Size(1, 2, 3, 4), Size(10, 20, 30, 40)]) == Size(11, 22, 33, 44)


def test_counts_that_no_tokenizer_explains_are_no_samples() -> None:
    """A server that cut the prompt reports a part of it."""
    assert calibrate([Sample(Size(40_000), 2_000)]) == Calibration()
    assert calibrate([Sample(Size(10), 90_000)]).constant == CONSTANT_LIMIT_TOKENS


NUMBERS = st.integers(0, 10**7)
SIZES = st.builds(Size, NUMBERS, NUMBERS, NUMBERS)


@given(st.lists(st.builds(Sample, SIZES, NUMBERS), max_size=8), SIZES)
def test_a_calibration_is_never_absurd(samples: list[Sample], size: Size) -> None:
    """Ours: whatever a server reports."""
    found = calibrate(samples)
    assert 0.25 <= found.ratio <= 4.0
    assert 0 <= found.constant <= CONSTANT_LIMIT_TOKENS
    assert size.tokens // 4 <= found.scale(size._replace(fixed_tokens=0)) <= 4 * size.tokens


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(0, 10**6))
def test_shares_add_up(parts: list[int], total: int) -> None:
    """Ours: the tokens of a report's rows are the prompt's."""
    shares = apportion(parts, total)
    assert min(shares) >= 0
    assert sum(shares) == (total if sum(parts) else 0)
    exact = [part * total / max(sum(parts), 1) for part in parts]
    assert all(abs(share - each) <= 1 for share, each in zip(shares, exact, strict=True))


# The request


def refuse(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode_count_request(msgspec.json.encode(fields))
    return caught.value


def test_a_count_request_is_a_create_request_without_what_makes_no_prompt() -> None:
    """Responses-API endpoint 7."""
    request = decode_count_request(
        msgspec.json.encode(
            {
                "model": "m",
                "input": "hi",
                "instructions": "Be brief.",
                "tools": [{"type": "function", "name": "f", "parameters": {}}],
                "tool_choice": "auto",
                "truncation": "auto",
                "reasoning": {"effort": "low"},
                "text": {"format": {"type": "json_object"}},
                "parallel_tool_calls": True,
                "personality": None,
            }
        )
    )
    assert (request.model, request.instructions, request.truncation) == ("m", "Be brief.", "auto")
    assert request.tool_choice_given
    assert len(request.tools) == len(request.input) == 1


@pytest.mark.parametrize("name", ["include", "store", "stream", "max_output_tokens", "metadata", "prompt"])
def test_what_makes_no_prompt_is_unknown(name: str) -> None:
    """Measured live: rejected as unknown parameters."""
    error = refuse(model="m", input="hi", **{name: None})
    assert (error.code, error.param) == ("unknown_parameter", name)


def test_a_count_needs_a_model_and_something_to_count() -> None:
    """Ours: a prompt is counted by the model's own server."""
    assert refuse(input="hi").param == "model"
    assert refuse(model="m").param == "input"
    assert refuse(model="m", input=None).param == "input"
    assert decode_count_request(b'{"model":"m","previous_response_id":"resp_1"}').input == []


def test_a_personality_is_refused_by_name() -> None:
    """Responses-API endpoint 7: it cannot be carried out, so it is not counted either."""
    error = refuse(model="m", input="hi", personality="friendly")
    assert (error.code, error.param) == ("unsupported_parameter", "personality")
    assert refuse(model="m", input="hi", personality=3).code == "invalid_type"


def test_other_checks_are_those_of_a_create_request() -> None:
    """Section 6 of the Responses API."""
    assert refuse(model="m", input="hi", truncation="some").param == "truncation"
    assert refuse(model="m", messages=[]).code == "unsupported_parameter"
    assert refuse(model="m", input="hi", max_tokens=5).code == "unknown_parameter"
    error = refuse(model="m", input="hi", previous_response_id="resp_1", conversation="conv_1")
    assert error.code == "mutually_exclusive_parameters"


def test_the_schema_has_every_field() -> None:
    """Ours: the description and the check are one list."""
    body, components = describe_count_request("#/components/schemas/{name}")
    assert set(body["properties"]) == set(COUNT_FIELDS)
    assert body["required"] == ["model"]
    assert components
