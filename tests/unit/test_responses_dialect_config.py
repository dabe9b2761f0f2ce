"""An endpoint of the dialect `responses` is configured like the one of Chat Completions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon.backends.responses import ResponsesBackend
from antiphon.bootstrap import build_backends
from antiphon.config import ConfigError, load_config


def load(folder: Path, **endpoint: Any) -> Any:
    fields = {"dialect": "responses", **endpoint}
    return load_config({"server": {"data": str(folder)}, "endpoints": {"sage": fields}})


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8080", "http://host:8080/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("https://host/v1/responses", "https://host/v1"),
        ("https://host/deep/v1/responses/", "https://host/deep/v1"),
    ],
)
def test_the_url_is_a_host_a_base_or_the_whole_route(tmp_path: Path, url: str, base: str) -> None:
    """Ours: whatever a vendor's page shows can be pasted."""
    assert load(tmp_path, url=url).endpoints["sage"].url == base


def test_the_backend_is_the_dialects(tmp_path: Path) -> None:
    """Ours: the setting has its effect."""
    backend = build_backends(load(tmp_path, url="http://127.0.0.1:9"))["sage"]
    assert isinstance(backend, ResponsesBackend)
    assert (backend.name, backend.speaks_responses) == ("sage", True)
    asyncio.run(backend.close())


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ["endpoints.sage.url", "required"]),
        ({"url": "http://h", "model": "m"}, ["endpoints.sage.model", "Only a local endpoint"]),
        ({"url": "http://h", "script": "s.toml"}, ["endpoints.sage.script", "Only a scripted endpoint"]),
    ],
)
def test_what_such_an_endpoint_cannot_have_is_named(
    tmp_path: Path, fields: dict[str, Any], told: list[str]
) -> None:
    """Ours: errors name the setting, the problem and the remedy."""
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, **fields)
    assert all(words in str(raised.value) for words in told)
