"""The settings of compaction: read, held against each other, and handed to those who go by them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon import bootstrap
from antiphon.backends.scripted import ScriptedBackend
from antiphon.config import Config, ConfigError, describe_config, load_config
from antiphon.config.compaction import PROMPT_FILE_BYTES
from antiphon.config.settings import list_fields
from antiphon.context.budget import CompactionLimits, make_budget
from antiphon.engine import Alias, Catalog, CompactionSettings

MODELS = """
[endpoints.a]
dialect = "scripted"
[models.big]
endpoint = "a"
[models.small]
endpoint = "a"
"""


def load(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    path = folder / "antiphon.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(environ=environ or {}, cwd=folder, file=path)


def fail(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load(folder, text)
    assert len(raised.value.problems) == 1, raised.value.message
    return raised.value.message


def build(config: Config) -> CompactionSettings:
    return bootstrap._build_compaction(config)


def test_without_settings_nothing_is_compacted_unasked(tmp_path: Path) -> None:
    """Ours: an ordinary response costs what it always did; the shares are the decided ones."""
    built = build(load(tmp_path, ""))
    assert built == CompactionSettings()
    assert built.limits == CompactionLimits()
    assert (built.policy, built.model, built.recall, built.accepts_ollama, built.prompt) == (
        "off",
        None,
        False,
        False,
        None,
    )


def test_a_whole_section_reaches_the_engine(tmp_path: Path) -> None:
    """Ours: every key of the section ends in the one struct that the engine goes by."""
    (tmp_path / "wishes.md").write_text("Keep every ticket number.\r\nIn English.\n", encoding="utf-8")
    given: dict[str, Any] = {
        "at_share": 0.8,
        "enough_share": 0.7,
        "user_share": 0.2,
        "user_max_tokens": 9_000,
        "retained_share": 0.3,
        "tail_share": 0.1,
        "step_share": 0.05,
        "reserve_share": 0.5,
        "summary_share": 0.2,
        "summary_max_tokens": 4_000,
        "facts_share": 0.1,
        "facts_max_tokens": 2_000,
        "index_share": 0.04,
        "index_max_tokens": 1_000,
    }
    lines = "\n".join(f"{key} = {value}" for key, value in given.items())
    config = load(
        tmp_path,
        MODELS
        + "[compaction]\npolicy = 'auto'\nmodel = 'small'\nrecall = true\naccept_ollama = true\n"
        + f"prompt_file = 'wishes.md'\n{lines}",
    )
    built = build(config)
    assert built == CompactionSettings(
        limits=CompactionLimits(**given),
        policy="auto",
        model="small",
        recall=True,
        accepts_ollama=True,
        prompt="Keep every ticket number.\nIn English.",
    )
    assert config.compaction.prompt_file == str(tmp_path / "wishes.md")
    assert "ticket" not in describe_config(config)


def test_every_limit_is_a_setting_with_the_default_that_the_ladder_has() -> None:
    """Ours: a limit that nobody can set, or one that is told wrongly, is found."""
    fields = list_fields("compaction")
    for limit in msgspec.structs.fields(CompactionLimits):
        assert fields[limit.name].default == limit.default
    others = {"policy", "model", "prompt_file", "recall", "accept_ollama"}
    assert set(fields) == {*CompactionLimits.__struct_fields__, *others}


@pytest.mark.parametrize("share", [name for name in CompactionLimits.__struct_fields__ if "share" in name])
@pytest.mark.parametrize("value", ["0", "1", "1.5", "-0.1", "nan"])
def test_a_share_is_more_than_nothing_and_less_than_all(tmp_path: Path, share: str, value: str) -> None:
    """Ours: a share of 0 or 1 leaves no window to work with."""
    message = fail(tmp_path, f"[compaction]\n{share} = {value}")
    assert f"compaction.{share}" in message
    assert "above 0 and below 1" in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tail_share = 0.5", ["compaction.tail_share", "retained_share, which is 0.4"]),
        ("retained_share = 0.6", ["compaction.retained_share", "more than the window", "1.03"]),
        ("user_share = 0.9\nretained_share = 0.3", ["compaction.user_share", "more than the window"]),
        ("reserve_share = 0.2", ["compaction.reserve_share", "twice summary_share"]),
        ("summary_max_tokens = 100", ["compaction.summary_max_tokens", "of at least 128"]),
        ("facts_max_tokens = 1", ["compaction.facts_max_tokens", "of at least 64"]),
        ("user_max_tokens = 0", ["compaction.user_max_tokens", "of at least 1"]),
        ("policy = 'on'", ["compaction.policy", '"off", "auto"']),
        ("recal = true", ["compaction.recal", 'Did you mean "recall"?']),
        ("prompt_file = 'none.md'", ["compaction.prompt_file", "There is no file"]),
    ],
)
def test_what_does_not_go_together_names_its_setting(tmp_path: Path, text: str, parts: list[str]) -> None:
    """Ours: refused at the start, where a person can mend it, and not in the middle of a conversation."""
    message = fail(tmp_path, f"[compaction]\n{text}")
    for part in parts:
        assert part in message


def test_shares_that_pass_leave_parts_that_fit_the_window() -> None:
    """Ours: the largest shares that are taken still add up to one window."""
    limits = CompactionLimits(user_share=0.3, retained_share=0.5, summary_share=0.1)
    budget = make_budget(
        limits, window_tokens=10_000, threshold_tokens=None, prompt_tokens=9_000, frame_tokens=500
    )
    parts = (
        budget.user_tokens,
        budget.retained_tokens,
        budget.summary_tokens,
        budget.facts_tokens,
        budget.index_tokens,
    )
    assert sum(parts) <= 10_000


def test_an_unknown_model_is_named_with_what_was_perhaps_meant(tmp_path: Path) -> None:
    """Ours: a summary is written by the model that was named, or the server does not start."""
    message = fail(tmp_path, MODELS + "[compaction]\nmodel = 'smal'")
    for part in ("compaction.model", '"smal"', 'Did you mean "small"?', "[models.smal]"):
        assert part in message
    assert "Add [models.small]." in fail(tmp_path, "[compaction]\nmodel = 'small'")


def test_wishes_that_are_no_text_or_too_long_are_refused(tmp_path: Path) -> None:
    """Ours: the file goes into every summary request, so it is read once, and bounded."""
    file = tmp_path / "wishes.md"
    text = "[compaction]\nprompt_file = 'wishes.md'"
    file.write_bytes(b"a" * PROMPT_FILE_BYTES)
    assert build(load(tmp_path, text)).prompt == "a" * PROMPT_FILE_BYTES
    file.write_bytes("é".encode() * PROMPT_FILE_BYTES)
    assert f"larger than {PROMPT_FILE_BYTES} bytes" in fail(tmp_path, text)
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in fail(tmp_path, text)
    file.write_bytes(b" \n")
    assert build(load(tmp_path, text)).prompt is None


def test_a_model_s_own_policy_goes_over_the_general_one() -> None:
    """Ours: one model can be left alone, or be the only one."""
    assert not CompactionSettings().allows(None)
    assert CompactionSettings().allows("auto")
    assert CompactionSettings(policy="auto").allows(None)
    assert not CompactionSettings(policy="auto").allows("off")


def test_policy_and_threshold_of_an_alias_reach_its_target(tmp_path: Path) -> None:
    """Ours: a policy is the model's; a model without an alias has none of its own."""
    text = MODELS + "compaction = 'auto'\ncompact_threshold = 1000\n"
    aliases = bootstrap._build_aliases(load(tmp_path, text))
    assert (aliases["small"].compaction, aliases["small"].compact_threshold) == ("auto", 1_000)
    assert (aliases["big"].compaction, aliases["big"].compact_threshold) == (None, None)

    async def find() -> list[tuple[str | None, int | None]]:
        catalog = Catalog({"a": ScriptedBackend("a")}, aliases | {"plain": Alias(endpoint="a", model="x")})
        targets = [await catalog.find(name) for name in ("small", "plain", "scripted")]
        return [(target.compaction, target.compact_threshold) for target in targets]

    assert asyncio.run(find()) == [("auto", 1_000), (None, None), (None, None)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("compaction = 'auto'\ncompact_threshold = 999", ["an integer of at least 1000, not 999"]),
        ("compaction = 'always'", ["models.small.compaction", '"off", "auto"']),
        ("compact_threshold = 2000", ["models.small.compact_threshold", "Nothing goes by it", '= "auto"']),
    ],
)
def test_a_threshold_that_nothing_goes_by_is_refused(tmp_path: Path, text: str, parts: list[str]) -> None:
    """Responses API, compact_threshold: at least 1000. Ours: no setting without an effect."""
    message = fail(tmp_path, MODELS + text)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("[compaction]\npolicy = 'auto'", {}),
        ("", {"ANTIPHON_COMPACTION__POLICY": "off"}),
    ],
)
def test_a_threshold_waits_for_a_policy_that_was_chosen(
    tmp_path: Path, text: str, environ: dict[str, str]
) -> None:
    """Ours: a variable switches compaction off for one run, with the file as it is."""
    config = load(tmp_path, MODELS + "compact_threshold = 2000\n" + text, environ)
    assert config.models["small"].compact_threshold == 2_000


def test_services_are_built_with_them(tmp_path: Path) -> None:
    """Ours: a whole server, from its file."""
    config = load(
        tmp_path, f"[server]\ndata = '{tmp_path / 'data'}'\n[compaction]\npolicy = 'auto'\nrecall = true\n"
    )

    async def build_services() -> CompactionSettings:
        engine = bootstrap.build_engine(config, {})
        try:
            return engine.services.compaction
        finally:
            await engine.close()

    assert asyncio.run(build_services()) == CompactionSettings(policy="auto", recall=True)
