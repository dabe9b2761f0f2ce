"""A server's token counts, believed only as far as they can be counts: pure; it knows no dialect."""

from antiphon.backends.interface import BackendUsage

#: Larger counts are no counts.
MAX_TOKENS = 2_147_483_647


def make_usage(
    input_tokens: int | None,
    output_tokens: int | None,
    *,
    cached_tokens: int | None = None,
    cache_write_tokens: int | None = None,
    reasoning_tokens: int | None = None,
) -> BackendUsage | None:
    """The usage that a server told, or None where what it told cannot be one.

    A part that is larger than its whole counts as not told.
    """
    if not input_tokens or not _is_count(input_tokens):
        # No prompt has no tokens: Ollama says 0 where it did not count.
        return None
    output = output_tokens or 0
    if not _is_count(output):
        return None
    return BackendUsage(
        input_tokens=input_tokens,
        output_tokens=output,
        cached_tokens=_take_part(cached_tokens, input_tokens),
        cache_write_tokens=_take_part(cache_write_tokens, input_tokens),
        reasoning_tokens=_take_part(reasoning_tokens, output),
    )


def _is_count(value: int) -> bool:
    return 0 <= value <= MAX_TOKENS


def _take_part(part: int | None, whole: int) -> int | None:
    return part if part is not None and 0 <= part <= whole else None
