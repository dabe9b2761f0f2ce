"""What servers tell of themselves -> profiles: their own answers, and answers of any shape."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import ModelFacts, facts
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from tests.wire import FOLDER

LLAMA = PROFILES["llama.cpp"]
OLLAMA = PROFILES["ollama"]
LM_STUDIO = PROFILES["lm-studio"]
EFFORTS = ("none", "low", "medium", "high")


def load(name: str) -> Any:
    """A recorded JSON answer."""
    return msgspec.json.decode((FOLDER / name).read_bytes())


def change(profile: Profile, **changes: Any) -> Profile:
    """A profile with some facts changed."""
    return msgspec.structs.replace(profile, **changes)


def list_of(*owners: str) -> Any:
    """A model list with these owners."""
    return {"data": [{"id": f"m{at}", "owned_by": owner} for at, owner in enumerate(owners)]}


@pytest.mark.parametrize(
    ("url", "models", "name"),
    [
        ("http://127.0.0.1:8080/v1", load("llama.cpp/models.json"), "llama.cpp"),
        ("http://127.0.0.1:8000/v1", list_of("vllm"), "vllm"),
        ("http://127.0.0.1:9000/v1", list_of("library"), "ollama"),
        ("http://127.0.0.1:9000/v1", list_of("bartowski", "library"), "ollama"),
        ("http://127.0.0.1:11434/v1", list_of("bartowski"), "ollama"),
        ("http://localhost:1234/v1", list_of("someone"), "lm-studio"),
        ("http://localhost:1234", None, "lm-studio"),
        ("http://127.0.0.1:9000/v1", list_of("organization_owner"), "lm-studio"),
        ("https://api.openai.com/v1", list_of("system"), "openai"),
        ("http://127.0.0.1:12345/v1", list_of("someone"), "default"),
        ("http://127.0.0.1:9000/v1", None, "default"),
    ],
)
def test_a_server_is_recognised_by_its_list_or_its_address(url: str, models: Any, name: str) -> None:
    """`owned_by` of each server: llama.cpp measured, the others documented."""
    assert facts.recognise_server(url, models) == name


def test_a_llama_cpp_list_tells_the_window() -> None:
    """Recorded from llama.cpp b11549: `meta.n_ctx` is what one request may use."""
    models = load("llama.cpp/models.json")
    assert facts.read_models(models, LLAMA) == [
        ModelFacts(
            name="smollm2",
            profile=change(LLAMA, window_tokens=512),
            created=models["data"][0]["created"],
            owned_by="llamacpp",
        )
    ]


def test_a_vllm_list_tells_the_window() -> None:
    """Measured with vLLM 0.32.0."""
    models = {"data": [{"id": "qwen05", "created": 5, "owned_by": "vllm", "max_model_len": 4096}]}
    assert facts.read_models(models, PROFILES["vllm"]) == [
        ModelFacts(
            name="qwen05", profile=change(PROFILES["vllm"], window_tokens=4096), created=5, owned_by="vllm"
        )
    ]


def test_llama_cpp_props_tell_what_the_template_can_do() -> None:
    """Recorded from llama.cpp b11549 with a template without tools."""
    assert facts.read_llama_props(load("llama.cpp/props.json"), LLAMA) == change(
        LLAMA, window_tokens=512, tools="schema", sees_images=False
    )


def test_llama_cpp_props_of_an_able_model() -> None:
    """The same keys, the other way round."""
    props = {
        "default_generation_settings": {"n_ctx": 8192},
        "chat_template_caps": {"supports_tools": True, "supports_reasoning_effort": True},
        "modalities": {"vision": True},
    }
    assert facts.read_llama_props(props, LLAMA) == change(
        LLAMA, window_tokens=8192, sees_images=True, efforts=EFFORTS
    )


@pytest.mark.parametrize(
    ("show", "running", "changes"),
    [
        (None, None, {}),
        (
            {
                "capabilities": ["completion", "tools", "thinking"],
                "model_info": {"llama.context_length": 131072},
            },
            {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4096}]},
            {"window_tokens": 4096, "sees_images": False, "efforts": EFFORTS},
        ),
        # The trained length is not the window that the server gives.
        (
            {"capabilities": ["completion", "vision"], "model_info": {"llama.context_length": 131072}},
            {"models": []},
            {"sees_images": True, "tools": "schema"},
        ),
        ({"parameters": 'stop "x"\nnum_ctx                        8192\n'}, None, {"window_tokens": 8192}),
        (
            {"parameters": "num_ctx 8192"},
            {"models": [{"name": "m:latest", "context_length": 2048}]},
            {"window_tokens": 2048},
        ),
        ({"parameters": "num_ctx many"}, {"models": [{"name": "other", "context_length": 2048}]}, {}),
    ],
)
@pytest.mark.parametrize("model", ["m", "m:latest"])
def test_ollama_tells_the_window_of_a_loaded_model(show: Any, running: Any, changes: Any, model: str) -> None:
    """Ollama's documentation of /api/show and /api/ps."""
    assert facts.read_ollama_show(show, running, model, OLLAMA) == change(OLLAMA, **changes)


@pytest.mark.parametrize(
    ("entry", "changes"),
    [
        (None, {}),
        (
            {"type": "vlm", "loaded_context_length": 4096, "max_context_length": 32768},
            {"window_tokens": 4096, "sees_images": True},
        ),
        ({"type": "llm", "state": "not-loaded", "max_context_length": 32768}, {"sees_images": False}),
    ],
)
def test_lm_studio_tells_the_window_of_a_loaded_model(entry: Any, changes: Any) -> None:
    """LM Studio's documentation of its own REST API."""
    assert facts.read_lm_studio_model(entry, LM_STUDIO) == change(LM_STUDIO, **changes)


def test_what_is_configured_stands() -> None:
    """Ours: a server fills in what the configuration left open, and overrules nothing."""
    given_profile = change(LLAMA, window_tokens=300, sees_images=True, efforts=("low",))
    assert facts.read_models(load("llama.cpp/models.json"), given_profile)[0].profile == given_profile
    told = facts.read_llama_props(load("llama.cpp/props.json"), given_profile)
    assert told == change(given_profile, tools="schema")


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ({"input_tokens": 33, "object": "response.input_tokens"}, 33),
        ({"count": 36, "max_model_len": 4096, "tokens": []}, 36),
        ({"count": True}, None),
        ({"input_tokens": "33"}, None),
        (None, None),
        ([], None),
    ],
)
def test_a_count_is_read_from_either_servers_answer(answer: Any, count: int | None) -> None:
    """llama.cpp recorded, vLLM measured."""
    assert facts.read_count(answer) == count


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data",
                    "id",
                    "meta",
                    "n_ctx",
                    "models",
                    "name",
                    "context_length",
                    "capabilities",
                    "parameters",
                    "modalities",
                    "vision",
                    "chat_template_caps",
                    "supports_tools",
                    "default_generation_settings",
                    "max_model_len",
                    "created",
                    "owned_by",
                    "type",
                    "loaded_context_length",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(answer=JSON, other=JSON)
def test_no_answer_makes_a_reader_raise(answer: Any, other: Any) -> None:
    """Ours: what is not told stays unknown."""
    assert facts.recognise_server("http://x/v1", answer) in PROFILES
    assert isinstance(facts.read_models(answer, Profile()), list)
    assert isinstance(facts.read_llama_props(answer, Profile()), Profile)
    assert isinstance(facts.read_ollama_show(answer, other, "m", Profile()), Profile)
    assert isinstance(facts.read_lm_studio_model(answer, Profile()), Profile)
    facts.read_count(answer)
