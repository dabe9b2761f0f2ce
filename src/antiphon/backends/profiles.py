"""The table of known servers' profiles. A vendor is data: a row here, never a class.

It knows what each server's interface takes; what one model can do (window, images, tools) the server
tells and `facts` reads.
"""

from antiphon.context import Profile

#: By the name that a configuration gives as `profile`.
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(),
        Profile(
            name="llama.cpp",
            tool_choice="required",
            effort_field="chat_template_kwargs",
            # Its own json_object is accepted and not enforced.
            json_object="schema",
            asks_for_parallel_calls=True,
            asks_for_progress=True,
        ),
        Profile(
            name="vllm",
            tool_choice="named",
            reasoning_field="reasoning",
            efforts=("low", "medium", "high"),
            refuses_large_limits=True,
        ),
        Profile(name="ollama", tool_choice="ignored", reasoning_field="reasoning", truncates_silently=True),
        Profile(name="lm-studio", tool_choice="required", json_object="schema"),
        Profile(
            name="openai",
            tool_choice="named",
            reasoning_field="none",
            think_tags=False,
            system_messages="anywhere",
            efforts=("none", "minimal", "low", "medium", "high", "xhigh"),
            verbosity=True,
            max_tokens_field="max_completion_tokens",
            hints=(
                "prompt_cache_key",
                "prompt_cache_retention",
                "safety_identifier",
                "service_tier",
                "user",
            ),
        ),
    )
}
