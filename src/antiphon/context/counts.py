"""Counting the tokens of a prompt without its model's own tokenizer.

Three parts: what of a prompt is read as text, how much of a long text is counted, and what a model's reported counts
say of ours. It knows no tokenizer: counting a text is a callable that it is given. Invariant: the same prompt and the
same samples give the same estimate.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from antiphon.context.image_costs import Billing, bill_image

#: Counts the tokens of a text of at most `CHUNK_CHARS` characters.
CountText: TypeAlias = Callable[[str], int]

#: What a message, call or output costs beside its text: the marks of its role.
MESSAGE_TOKENS: Final = 4
#: Texts are counted in pieces of this length; a cut costs at most one token.
CHUNK_CHARS: Final = 4_096
#: A text up to this length is always counted whole.
WHOLE_CHARS: Final = 256
#: For what could not be counted in time, when nothing else was.
CHARS_PER_TOKEN: Final = 4
#: A prompt of up to this many tokens tells what a template adds to any prompt, a longer one tells the ratio.
SMALL_PROMPT_TOKENS: Final = 256
#: A template adds at most this much to every prompt, as far as we believe a small prompt.
CONSTANT_LIMIT_TOKENS: Final = 512
#: No tokenizer differs from ours by more than this factor; a count that says so is of another prompt.
RATIO_LIMITS: Final = (0.25, 4.0)
#: Weight of the belief, before any sample, that a model counts as we do, in tokens of samples: for all texts alike,
#: and for digits and other scripts in particular.
PRIOR_TOKENS: Final = (16.0, 24.0, 96.0)

#: Keys of messages, items and parts whose values no model reads.
_UNREAD: Final = frozenset(
    {
        "annotations",
        "call_id",
        "created_by",
        "detail",
        "encrypted_content",
        "id",
        "logprobs",
        "phase",
        "prompt_cache_breakpoint",
        "role",
        "status",
        "tool_call_id",
        "type",
    }
)
#: Keys whose values are read as JSON text.
_READ_AS_JSON: Final = frozenset({"parameters", "tools"})

_decode = msgspec.json.Decoder().decode


class Reading(msgspec.Struct):
    """What a piece of a prompt holds for the model."""

    texts: list[str]
    messages: int = 0
    image_tokens: int = 0


def read_piece(piece: bytes, billing: Billing) -> Reading:
    """The texts and images of a piece of a prompt: messages or items as JSON, joined by commas, or plain text.

    `{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}` -> texts "hi" and "yes", 2 messages
    """
    try:
        values = _decode(b"[" + piece + b"]")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Reading([piece.decode(errors="replace")])
    reading = Reading([])
    for value in values:
        if isinstance(value, dict):
            reading.messages += 1
            _read_object(value, reading, billing)
        else:
            reading.texts.append(value if isinstance(value, str) else _encode_text(value))
    return reading


def _read_object(value: dict[str, Any], reading: Reading, billing: Billing) -> None:
    open_objects = [value]
    while open_objects:
        fields = open_objects.pop()
        for key, member in fields.items():
            if key in _UNREAD or member is None:
                continue
            if key == "image_url":
                reading.image_tokens += _bill(member, fields, billing)
            elif key in _READ_AS_JSON:
                reading.texts.append(_encode_text(member))
            elif isinstance(member, str):
                reading.texts.append(member)
            elif isinstance(member, dict):
                open_objects.append(member)
            elif isinstance(member, list):
                open_objects += [each for each in member if isinstance(each, dict)]
                reading.texts += [each for each in member if isinstance(each, str)]


def _bill(image: Any, fields: dict[str, Any], billing: Billing) -> int:
    """`image_url` is a string beside its `detail`, or an object that holds both."""
    if isinstance(image, dict):
        image, fields = image.get("url"), image
    detail = fields.get("detail")
    return bill_image(
        image if isinstance(image, str) else None, detail if isinstance(detail, str) else None, billing
    )


def _encode_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def count_texts(
    texts: Sequence[str],
    count: CountText,
    *,
    limit_chars: int,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[list[int], bool]:
    """The tokens of each text, and whether all of them were looked at.

    Beyond `limit_chars` in all, pieces of the texts are counted, evenly spread, and scaled; once `is_late`, what is
    left is guessed at the rate of what was counted.
    """
    total = sum(map(len, texts))
    share = min(1.0, limit_chars / total) if total else 1.0
    counted_chars = counted_tokens = 0
    counts: list[int] = []
    for position, text in enumerate(texts):
        tokens = 0
        for chunk in _choose_chunks(text, share):
            if is_late():
                rest = texts[position:]
                guess = counted_tokens / counted_chars if counted_chars else 1 / CHARS_PER_TOKEN
                return [*counts, *(round(len(each) * guess) for each in rest)], False
            found = count(chunk)
            tokens += found
            counted_tokens += found
            counted_chars += len(chunk)
        counts.append(_scale(tokens, text, share))
    return counts, True


def _choose_chunks(text: str, share: float) -> list[str]:
    """The text in chunks; of a long one as many as its share allows, at even distances."""
    allowed = _allow(text, share)
    if allowed == len(text):
        return [text[at : at + CHUNK_CHARS] for at in range(0, len(text), CHUNK_CHARS)]
    length = min(CHUNK_CHARS, allowed)
    number = allowed // length
    distance = (len(text) - length) / max(number - 1, 1)
    starts = [int(at * distance) for at in range(number)]
    return [text[start : start + length] for start in starts]


def _allow(text: str, share: float) -> int:
    return min(len(text), max(WHOLE_CHARS, int(len(text) * share)))


def _scale(tokens: int, text: str, share: float) -> int:
    allowed = _allow(text, share)
    if allowed == len(text):
        return tokens
    length = min(CHUNK_CHARS, allowed)
    return round(tokens * len(text) / (allowed // length * length))


class Size(NamedTuple):
    """A piece of a prompt in our own measures, whose models' counts are made of.

    `tokens`: of o200k, and the marks of messages; `digits`: many tokenizers take each alone; `wide_bytes`: what UTF-8
    has beyond a byte for a character, since tokenizers differ most in other scripts; `fixed_tokens`: images.
    """

    tokens: int = 0
    digits: int = 0
    wide_bytes: int = 0
    fixed_tokens: int = 0

    @property
    def own_tokens(self) -> int:
        """Our own count, before any calibration."""
        return self.tokens + self.fixed_tokens


def measure_texts(texts: Sequence[str], tokens: int) -> Size:
    """The size of texts that have so many tokens."""
    digits = sum(text.count(digit) for text in texts for digit in "0123456789")
    wide = sum(len(text.encode(errors="replace")) - len(text) for text in texts if not text.isascii())
    return Size(tokens, digits, wide)


def add_sizes(sizes: Iterable[Size]) -> Size:
    """The size of several pieces together."""
    tokens = digits = wide = fixed = 0
    for size in sizes:
        tokens += size.tokens
        digits += size.digits
        wide += size.wide_bytes
        fixed += size.fixed_tokens
    return Size(tokens, digits, wide, fixed)


class Sample(msgspec.Struct, frozen=True):
    """One prompt without images: its size, and the count that its backend reported."""

    size: Size
    reported_tokens: int


class Calibration(msgspec.Struct, frozen=True):
    """How a model's counts come from sizes: so much for each token, digit and wide byte, and for every prompt."""

    ratio: float = 1.0
    per_digit: float = 0.0
    per_wide_byte: float = 0.0
    constant: int = 0

    def apply(self, size: Size) -> int:
        """The model's count of a whole prompt."""
        return self.scale(size) + self.constant

    def scale(self, size: Size) -> int:
        """The model's count of a part of a prompt."""
        lowest, highest = RATIO_LIMITS
        tokens = self.ratio * size.tokens + self.per_digit * size.digits
        tokens += self.per_wide_byte * size.wide_bytes
        return round(min(max(tokens, lowest * size.tokens), highest * size.tokens)) + size.fixed_tokens


def calibrate(samples: Sequence[Sample]) -> Calibration:
    """What the samples say: long prompts tell the rates, short ones what the template adds.

    Samples that no tokenizer could explain are left out.
    """
    large = [each for each in samples if each.size.tokens > SMALL_PROMPT_TOKENS and _is_plausible(each)]
    small = [each for each in samples if each.size.tokens <= SMALL_PROMPT_TOKENS]
    constant = _find_constant(small, _find_rates(large, 0))
    # Once more, now that it is known what of the long prompts is the template's.
    return msgspec.structs.replace(_find_rates(large, constant), constant=constant)


def _is_plausible(sample: Sample) -> bool:
    lowest, highest = RATIO_LIMITS
    return lowest <= sample.reported_tokens / sample.size.tokens <= highest


def _find_rates(samples: Sequence[Sample], constant: int) -> Calibration:
    """Least squares of relative errors; a rate that the samples say little about stays near its prior."""
    matrix = [[PRIOR_TOKENS[row] if row == column else 0.0 for column in range(3)] for row in range(3)]
    vector = [PRIOR_TOKENS[0], 0.0, 0.0]
    for sample in samples:
        weight = 1 / max(sample.size.tokens, 1)
        features = sample.size[:3]
        for row in range(3):
            vector[row] += weight * features[row] * (sample.reported_tokens - constant)
            for column in range(3):
                matrix[row][column] += weight * features[row] * features[column]
    ratio, per_digit, per_wide_byte = _solve(matrix, vector)
    lowest, highest = RATIO_LIMITS
    return Calibration(min(max(ratio, lowest), highest), per_digit, per_wide_byte)


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Three equations with three unknowns; the matrix is symmetric and positive definite, so no pivot is zero."""
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for at in range(3):
        for below in range(at + 1, 3):
            factor = rows[below][at] / rows[at][at]
            rows[below] = [x - factor * y for x, y in zip(rows[below], rows[at], strict=True)]
    found = [0.0, 0.0, 0.0]
    for at in (2, 1, 0):
        known = sum(rows[at][column] * found[column] for column in range(at + 1, 3))
        found[at] = (rows[at][3] - known) / rows[at][at]
    return found


def _find_constant(samples: Sequence[Sample], rates: Calibration) -> int:
    extra = sorted(each.reported_tokens - rates.scale(each.size) for each in samples)
    if not extra:
        return 0
    return min(max(extra[len(extra) // 2], 0), CONSTANT_LIMIT_TOKENS)


def apportion(parts: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to `parts` that add up to `total`: `([1, 1, 2], 9)` -> `[2, 2, 5]`."""
    size = sum(parts)
    if not parts or size <= 0:
        return [0] * len(parts)
    shares: list[int] = []
    passed = 0.0
    given = 0
    for part in parts:
        passed += part
        upto = round(total * passed / size)
        shares.append(upto - given)
        given = upto
    return shares
