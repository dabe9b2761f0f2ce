"""What is asked of a backend: a request fitted to what the profile of its model knows.

Pure but for the errors that it raises. Invariant: what the model cannot be asked is refused or warned of.
"""

from antiphon.backends import Ask, Segment
from antiphon.context import (
    Profile,
    Toolbox,
)
from antiphon.engine.catalog import Target
from antiphon.engine.refusals import unsupported
from antiphon.engine.windows import Window
from antiphon.protocol.requests import CreateRequest, Effort


def make_ask(
    request: CreateRequest,
    target: Target,
    window: Window,
    segment: Segment,
    toolbox: Toolbox,
    warnings: list[tuple[str, str]],
) -> Ask:
    """What is asked of the backend; `warnings` get what it cannot be asked."""
    profile = target.profile
    # Such a server is told all of the request, and decides itself what it can honour.
    whole = target.backend.speaks_responses
    lead = segment.lead if window.is_at_start else window.lead
    ask = Ask(
        model=target.model,
        profile=profile,
        system=join_system(target, request.instructions, lead),
        transcript=[*window.pieces, segment.body] if segment.body else window.pieces,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        text_format=request.text.format if request.text.format.type != "text" else None,
        verbosity=request.text.verbosity if whole else _choose_verbosity(request, profile),
        effort=_get_effort(request) if whole else _choose_effort(request, profile, warnings),
        hints={} if whole else _choose_hints(request, profile),
        tools=[tool.function for tool in toolbox.offered],
        tool_choice=toolbox.choice,
        forced_tool=toolbox.forced,
        parallel_tool_calls=request.parallel_tool_calls if toolbox.offered or toolbox.hosted else None,
        request=request,
    )
    if "message.output_text.logprobs" in request.include or request.top_logprobs:
        ask.top_logprobs = request.top_logprobs or 0
    if profile.tools == "schema" and toolbox.offered and ask.top_logprobs is not None:
        ask.top_logprobs = None
        text = (
            "The model calls tools by constrained JSON, whose log probabilities are not those of the answer."
        )
        warnings.append(("logprobs_left_out", text))
    return ask


def _choose_verbosity(request: CreateRequest, profile: Profile) -> str | None:
    asked = request.text.verbosity
    if profile.verbosity:
        return asked
    if asked not in (None, "medium"):
        raise unsupported("text.verbosity", f"'{asked}' for this model")
    return None


#: All efforts, weakest first; a profile names those that its server knows.
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _choose_effort(request: CreateRequest, profile: Profile, warnings: list[tuple[str, str]]) -> str | None:
    """The nearest effort that the model knows; the response echoes it, and says when it is another."""
    asked = _get_effort(request)
    if asked is None:
        return None
    if not profile.efforts:
        warnings.append(("effort_left_out", f"The model has no reasoning effort; '{asked}' was left out."))
        return None
    if asked in profile.efforts:
        return asked
    rank = _EFFORTS.index(asked)
    known = [effort for effort in _EFFORTS if effort in profile.efforts]
    nearest = min(known, key=lambda effort: abs(_EFFORTS.index(effort) - rank))
    warnings.append(("effort_changed", f"The model knows no effort '{asked}'; '{nearest}' was used."))
    return nearest


def _get_effort(request: CreateRequest) -> Effort | None:
    return request.reasoning.effort if request.reasoning is not None else None


def _choose_hints(request: CreateRequest, profile: Profile) -> dict[str, object]:
    hints = {name: getattr(request, name) for name in profile.hints}
    return {name: value for name, value in hints.items() if value is not None}


def join_system(target: Target, instructions: str | None, lead: str) -> str:
    """The whole system text of a prompt."""
    return "\n\n".join([text for text in (target.system_prompt, instructions, lead) if text])
