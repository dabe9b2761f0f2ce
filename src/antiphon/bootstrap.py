"""The composition root: from a configuration to a running application.

The only module that names concrete stores and dialects. It decides nothing else.
"""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import uvicorn

from antiphon.backends import Backend
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.local import DEFAULT_MODEL, MODELS, ModelCache, ModelError, Report, find_model
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.local.machine import check_model_file, find_missing
from antiphon.backends.local.runtime import LocalRuntime, LocalRuntimeError, RuntimeSettings
from antiphon.backends.profiles import PROFILES
from antiphon.backends.responses import ResponsesBackend
from antiphon.backends.scripted import ScriptedBackend, load_script
from antiphon.config import Config, EndpointSettings, KeySettings, ServeFacts, load_seal_keys
from antiphon.context import Profile
from antiphon.engine import (
    Alias,
    BackgroundSettings,
    Catalog,
    CompactionSettings,
    ContentReader,
    Engine,
    GrammarChecker,
    Services,
    TokenCounter,
    WindowCache,
)
from antiphon.hosted import Fetcher, McpConnector, SearchProvider
from antiphon.hosted.addresses import AddressRules
from antiphon.hosted.fetching import HttpFetcher
from antiphon.hosted.mcp import SdkMcpConnector, is_sdk_installed
from antiphon.hosted.mcp_limits import McpLimits
from antiphon.hosted.searxng import SearxngSearch
from antiphon.protocol.errors import AntiphonError
from antiphon.server import (
    Admission,
    AdmissionLimits,
    Application,
    Key,
    KeyLimits,
    Keyring,
    ServerLimits,
)
from antiphon.server.log_format import open_log
from antiphon.server.socket_protocol import PING_INTERVAL_S, SocketProtocol
from antiphon.store.interface import StoreSettings
from antiphon.store.sqlite import SqliteStore

_log = logging.getLogger("antiphon.bootstrap")

_KEEP_ALIVE_S = 75
_LAST_WORDS_S = 5
_HASTY_WORDS_S = 1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def build_backends(config: Config) -> dict[str, Backend]:
    """The backend of each endpoint; raises `ModelError` for a local model that is not there."""
    return {name: _build_backend(settings, config) for name, settings in config.endpoints.items()}


def check_backends(config: Config) -> None:
    """Raise what would keep `serve` from building its backends; a model that can be downloaded does not."""
    for settings in config.endpoints.values():
        if settings.dialect == "scripted":
            _build_backend(settings, config)
        elif settings.dialect == "local" and not settings.model_file:
            find_model(settings.model or DEFAULT_MODEL, MODELS)
    _build_aliases(config)


def build_engine(config: Config, backends: Mapping[str, Backend]) -> Engine:
    """Store and engine as configured. The store's folder is locked until `close`; the seal keys are made if need be."""
    seal_keys = load_seal_keys(config)
    store = SqliteStore.open(Path(config.server.data), StoreSettings(durability=config.store.durability))
    catalog = Catalog(backends, _build_aliases(config))
    limits = config.limits
    fetcher = _build_fetcher(config)
    services = Services(
        catalog=catalog,
        store=store,
        cache=WindowCache(limits.window_cache_bytes),
        contents=ContentReader(fetcher),
        counter=TokenCounter(),
        seal_keys=seal_keys,
        grammars=GrammarChecker(),
        search=_build_search(config),
        mcp=_build_mcp_connector(config),
        fetcher=fetcher,
        compaction=_build_compaction(config),
    )
    background = BackgroundSettings(
        workers=limits.background_workers,
        queue_limit=limits.background_queue,
        events_s=limits.background_events_s,
        keep_alive_s=limits.keep_alive_s,
    )
    return Engine(services, background=background, unstored_bytes=limits.websocket_state_bytes)


def build_application(config: Config, engine: Engine) -> Application:
    """The ASGI application over an engine."""
    limits = config.limits
    keys = [
        Key(
            sha256=key.sha256,
            tenant=key.tenant or name,
            zero_retention=key.zero_retention,
            limits=_build_key_limits(key),
        )
        for name, key in config.keys.items()
    ]
    admission = Admission(
        AdmissionLimits(
            max_responses=limits.max_responses,
            max_waiting=limits.max_waiting,
            queue_wait_s=limits.queue_wait_s,
        )
    )
    return Application(
        engine,
        keys=Keyring(keys, zero_retention=config.server.zero_retention),
        admission=admission,
        limits=ServerLimits(
            body_bytes=limits.body_bytes,
            body_decompressed_bytes=limits.body_decompressed_bytes,
            max_input_items=limits.max_input_items,
            body_timeout_s=limits.body_timeout_s,
            write_timeout_s=limits.write_timeout_s,
            keep_alive_s=limits.keep_alive_s,
            status_wait_s=limits.status_wait_s,
            websocket=config.server.websocket,
            websocket_connections=limits.websocket_connections,
            websocket_s=limits.websocket_s,
            websocket_lanes=limits.websocket_lanes,
            websocket_running=limits.websocket_running,
            websocket_waiting=limits.websocket_waiting,
        ),
    )


def _build_key_limits(key: KeySettings) -> KeyLimits | None:
    if not key.max_responses and not key.requests_per_minute:
        return None
    return KeyLimits(
        name=key.name, max_responses=key.max_responses, requests_per_minute=key.requests_per_minute
    )


@asynccontextmanager
async def build_app(config: Config) -> AsyncIterator[Application]:
    """The application for use in this process; closes everything behind it."""
    engine = build_engine(config, build_backends(config))
    try:
        await engine.start()
        yield build_application(config, engine)
    finally:
        await engine.close()


def open_model_cache(config: Config) -> ModelCache:
    """The folder of downloaded models."""
    return ModelCache(Path(config.local.cache))


def fetch_models(config: Config, report: Report) -> None:
    """Download what local endpoints serve and what is not here yet; `report` hears how far it is.

    Raises `ModelError`, and `LocalRuntimeError` when this machine could not run a model anyway.
    """
    local = [settings for settings in config.endpoints.values() if settings.dialect == "local"]
    missing = find_missing() if local else None
    if missing is not None:
        raise LocalRuntimeError(missing)
    cache = open_model_cache(config)
    for name in sorted({settings.model or DEFAULT_MODEL for settings in local if not settings.model_file}):
        if cache.find(name) is None:
            cache.pull(name, sources=config.local.sources, report=report)


def serve(config: Config, announce: Callable[[ServeFacts], None], report: Report) -> None:
    """Listen and serve until a signal comes; `announce` is called once, when requests are answered.

    A local model that is not here is downloaded first; `report` hears how far it is. Raises `OSError` when
    the address cannot be listened on, `AntiphonError` when the data folder or the model cannot be used, and
    `KeyboardInterrupt` after SIGINT, when everything is closed.
    """
    open_log()
    # Everything that can go wrong in a request is told by our own log; uvicorn would add tracebacks of stops.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    listener = _listen(config.server.host, config.server.port, config.limits.write_timeout_s)
    try:
        fetch_models(config, report)
        with asyncio.Runner(loop_factory=_pick_loop_factory()) as runner:
            runner.run(_serve(config, listener, announce))
    finally:
        listener.close()


async def _serve(config: Config, listener: socket.socket, announce: Callable[[ServeFacts], None]) -> None:
    backends = build_backends(config)
    engine = build_engine(config, backends)
    try:
        # Loading takes a second or more; a model that cannot be loaded is no server to announce.
        await asyncio.gather(
            *(backend.start() for backend in backends.values() if isinstance(backend, LocalBackend))
        )
        await engine.start()
        application = build_application(config, engine)
        facts = await _gather_facts(config, engine, listener)
        server = _Server(
            uvicorn.Config(
                application,
                http=_pick_http_protocol(),
                ws=SocketProtocol if config.server.websocket else "none",
                ws_max_size=config.limits.body_decompressed_bytes,
                ws_ping_interval=PING_INTERVAL_S,
                ws_ping_timeout=None,
                ws_per_message_deflate=config.server.websocket_compression,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
            ),
            lambda: announce(facts),
            lambda: _drain(application, engine, config.limits.shutdown_s),
            config.limits.shutdown_s,
        )
        # What was built so far lives as long as the server: no collection needs to look at it again.
        gc.collect()
        gc.freeze()
        # Requests leave few cycles behind; looking for them often costs a tenth of the time under load.
        gc.set_threshold(50_000, 20, 20)
        await server.serve(sockets=[listener])
    finally:
        await engine.close()
    if server.interrupted:
        raise KeyboardInterrupt


async def _drain(application: Application, engine: Engine, wait_s: float) -> None:
    """What has no request that uvicorn would wait for: connections that stay open, and background work."""
    application.stop()
    await engine.background.drain(wait_s)


class _Server(uvicorn.Server):
    """Uvicorn, telling when it listens, and leaving what to do after a signal to us."""

    def __init__(
        self,
        config: uvicorn.Config,
        when_ready: Callable[[], None],
        drain: Callable[[], Coroutine[Any, Any, None]],
        patience_s: float,
    ) -> None:
        super().__init__(config)
        self._when_ready = when_ready
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None
        self._patience_s = patience_s
        self._hurry = asyncio.Event()
        self.interrupted = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM; uvicorn's own would end the process before the store is closed."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def _stop(self, number: int) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        if not self.should_exit:
            _log.info("stopping: running answers may end; a second signal ends them")
            # What runs in the background has no connection that uvicorn would wait for.
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._hurry.set()
            if self._draining is not None:
                self._draining.cancel()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for connections and for what runs without one, both from the signal on; then end what still runs."""
        closing = asyncio.get_running_loop().create_task(super().shutdown(sockets))
        await self._wait_for({closing}, self._patience_s)
        closing.cancel()
        # Once each: whoever is cancelled a second time has no last words.
        tasks = set(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await self._wait_for(tasks, _LAST_WORDS_S)
            await asyncio.wait(tasks, timeout=_HASTY_WORDS_S)
        if self._draining is not None:
            await asyncio.wait({self._draining})

    async def _wait_for(self, tasks: "set[asyncio.Task[None]]", wait_s: float) -> None:
        """Until all have ended, the time is over, or a second signal comes."""
        whole = asyncio.ensure_future(asyncio.wait(tasks))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait({whole, hurry}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            whole.cancel()
            hurry.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._when_ready()


async def _gather_facts(config: Config, engine: Engine, listener: socket.socket) -> ServeFacts:
    notes: list[str] = []
    models: tuple[str, ...] = tuple(config.models)
    try:
        models = tuple(facts.name for facts in await engine.list_models())
    except AntiphonError as error:
        notes.append(error.message)
    host, port = listener.getsockname()[:2]
    return ServeFacts(
        url=f"http://{f'[{host}]' if ':' in host else host}:{port}/v1",
        models=models,
        store=f"{config.store.kind} at {config.server.data}",
        keys=len(config.keys),
        notes=tuple(notes),
    )


def _listen(host: str, port: int, write_timeout_s: float) -> socket.socket:
    """A listening socket, so that a taken port is known before anything else is opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Accepted sockets inherit it: what a client that was given up never read goes, and its connection.
            patience_ms = max(1, int(write_timeout_s * 1000))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _pick_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        # No uvloop on this platform: asyncio's own loop serves too.
        return None
    return uvloop.new_event_loop


def _pick_http_protocol() -> "type[asyncio.Protocol] | Literal['auto']":
    try:
        from antiphon.server.http_protocol import HttpProtocol
    except ImportError:
        # No httptools on this platform: uvicorn has another one.
        return "auto"
    return HttpProtocol


def _build_search(config: Config) -> SearchProvider | None:
    search = config.search
    if not search.url or search.provider != "searxng":
        return None
    key = search.key.reveal() if search.key is not None else None
    return SearxngSearch(search.url, timeout_s=search.timeout_s, key=key)


def _build_mcp_connector(config: Config) -> McpConnector | None:
    mcp = config.mcp
    if not mcp.enabled or not is_sdk_installed():
        return None
    # Without keys the server serves one person on this machine, whose own servers are likely meant.
    is_private_allowed = (
        not config.keys if mcp.private_addresses == "auto" else mcp.private_addresses == "allow"
    )
    return SdkMcpConnector(
        rules=AddressRules(
            private=is_private_allowed,
            hosts=mcp.hosts,
            hosts_setting="mcp.hosts",
            private_setting="mcp.private_addresses or mcp.hosts",
        ),
        limits=McpLimits(
            connect_timeout_s=mcp.connect_timeout_s,
            call_timeout_s=mcp.call_timeout_s,
            max_tools=mcp.max_tools,
            max_result_characters=mcp.max_result_characters,
        ),
    )


def _build_fetcher(config: Config) -> Fetcher | None:
    fetch = config.fetch
    if not fetch.images:
        return None
    return HttpFetcher(
        rules=AddressRules(hosts=fetch.hosts, hosts_setting="fetch.hosts", private_setting="fetch.hosts"),
        max_bytes=fetch.max_bytes,
        timeout_s=fetch.timeout_s,
        max_redirects=fetch.max_redirects,
    )


def _build_compaction(config: Config) -> CompactionSettings:
    settings = config.compaction
    return CompactionSettings(
        limits=settings.make_limits(),
        policy=settings.policy,
        model=settings.model or None,
        recall=settings.recall,
        accepts_ollama=settings.accept_ollama,
        prompt=settings.prompt or None,
    )


def _build_backend(settings: EndpointSettings, config: Config) -> Backend:
    profile = _find_profile(settings.profile, config)
    if settings.dialect == "scripted":
        script = load_script(Path(settings.script) if settings.script else None)
        return ScriptedBackend(settings.name, script)
    if settings.dialect == "local":
        return _build_local(settings, config, profile)
    key = settings.key.reveal() if settings.key is not None else None
    endpoint = _build_endpoint(settings, config, settings.url, key)
    if settings.dialect == "responses":
        return ResponsesBackend(endpoint, profile=profile)
    return ChatCompletionsBackend(endpoint, profile=profile)


def _build_local(settings: EndpointSettings, config: Config, profile: Profile | None) -> LocalBackend:
    context_tokens = config.local.context_tokens
    if settings.model_file:
        path = Path(settings.model_file)
        check_model_file(path)
        name = path.stem
    else:
        model = find_model(settings.model or DEFAULT_MODEL, MODELS)
        name = model.name
        found = open_model_cache(config).find(name)
        if found is None:
            raise ModelError(f"{name} has not been downloaded. Run: antiphon models pull {name}")
        path = found
        # What the model can do is the table's to say; which server runs it is known.
        profile = profile or msgspec.structs.replace(model.profile, name="llama.cpp")
        context_tokens = min(context_tokens, model.context_tokens)
    runtime = LocalRuntime(
        RuntimeSettings(
            name=name,
            model=path,
            context_tokens=context_tokens,
            parallel=config.local.parallel,
            threads=config.local.threads,
        )
    )
    endpoint = _build_endpoint(settings, config, runtime.url, runtime.key)
    return LocalBackend(runtime, ChatCompletionsBackend(endpoint, profile=profile))


def _build_endpoint(settings: EndpointSettings, config: Config, url: str, key: str | None) -> Endpoint:
    return Endpoint(
        name=settings.name,
        url=url,
        key=key,
        connect_timeout_s=config.limits.connect_timeout_s,
        idle_timeout_s=config.limits.idle_timeout_s,
        max_connections=config.limits.endpoint_connections,
    )


def _build_aliases(config: Config) -> dict[str, Alias]:
    aliases: dict[str, Alias] = {}
    for name, model in config.models.items():
        endpoint = config.endpoints[model.endpoint]
        given = model.profile or endpoint.profile
        aliases[name] = Alias(
            endpoint=model.endpoint,
            model=_name_local_model(name, model.model, endpoint) or model.model or name,
            profile=_find_profile(given, config),
            system_prompt=model.system_prompt,
            compaction=model.compaction,
            compact_threshold=model.compact_threshold,
        )
    return aliases


def _name_local_model(alias: str, asked: str, endpoint: EndpointSettings) -> str:
    """The one model of a local endpoint; "" for any other endpoint. An alias of another model is refused."""
    if endpoint.dialect != "local":
        return ""
    served = Path(endpoint.model_file).stem if endpoint.model_file else endpoint.model or DEFAULT_MODEL
    # A model that was left out reads as the alias; only a model's own name says that another one is meant.
    if asked != served and (asked != alias or asked in MODELS):
        raise ModelError(
            f"models.{alias}.model is {asked}, but endpoint '{endpoint.name}' serves {served}. "
            f"Give {asked} an endpoint of its own, or leave the model of the alias out."
        )
    return served


def _find_profile(name: str, config: Config) -> Profile | None:
    if not name:
        return None
    return config.profiles.get(name) or PROFILES[name]
