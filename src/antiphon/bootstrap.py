"""The composition root: from a configuration to a running application.

The only module that names concrete stores and dialects. It decides nothing else.
"""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn

from antiphon.backends import Backend
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.profiles import PROFILES
from antiphon.backends.scripted import ScriptedBackend, load_script
from antiphon.config import Config, EndpointSettings, ServeFacts
from antiphon.context import Profile
from antiphon.engine import Alias, Catalog, Engine, EngineSettings
from antiphon.protocol.errors import AntiphonError
from antiphon.server import Application, Key, Keyring, ServerLimits
from antiphon.store.interface import StoreSettings
from antiphon.store.sqlite import SqliteStore

#: After a signal, running responses have this long to end.
SHUTDOWN_S = 10
_KEEP_ALIVE_S = 75
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def build_engine(config: Config) -> Engine:
    """Backends, store and engine as configured. The store's folder is locked until `close`."""
    backends = {name: _build_backend(settings, config) for name, settings in config.endpoints.items()}
    store = SqliteStore.open(Path(config.server.data), StoreSettings(durability=config.store.durability))
    catalog = Catalog(backends, _build_aliases(config))
    settings = EngineSettings(window_cache_bytes=config.limits.window_cache_bytes)
    return Engine(catalog=catalog, store=store, settings=settings)


def build_application(config: Config, engine: Engine) -> Application:
    """The ASGI application over an engine."""
    limits = config.limits
    keys = [Key(sha256=key.sha256, tenant=key.tenant or name) for name, key in config.keys.items()]
    return Application(
        engine,
        keys=Keyring(keys),
        limits=ServerLimits(
            body_bytes=limits.body_bytes,
            body_decompressed_bytes=limits.body_decompressed_bytes,
            max_input_items=limits.max_input_items,
            body_timeout_s=limits.body_timeout_s,
            write_timeout_s=limits.write_timeout_s,
            keep_alive_s=limits.keep_alive_s,
            status_wait_s=limits.status_wait_s,
        ),
    )


@asynccontextmanager
async def build_app(config: Config) -> AsyncIterator[Application]:
    """The application for use in this process; closes everything behind it."""
    engine = build_engine(config)
    try:
        yield build_application(config, engine)
    finally:
        await engine.close()


def serve(config: Config, announce: Callable[[ServeFacts], None]) -> None:
    """Listen and serve until a signal comes; `announce` is called once, when requests are answered.

    Raises `OSError` when the address cannot be listened on, `StoreError` when the data folder cannot be used,
    and `KeyboardInterrupt` after SIGINT, when everything is closed.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    listener = _listen(config.server.host, config.server.port)
    try:
        with asyncio.Runner(loop_factory=_pick_loop_factory()) as runner:
            runner.run(_serve(config, listener, announce))
    finally:
        listener.close()


async def _serve(config: Config, listener: socket.socket, announce: Callable[[ServeFacts], None]) -> None:
    engine = build_engine(config)
    try:
        application = build_application(config, engine)
        facts = await _gather_facts(config, engine, listener)
        server = _Server(
            uvicorn.Config(
                application,
                http="auto",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_S,
            ),
            lambda: announce(facts),
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


class _Server(uvicorn.Server):
    """Uvicorn, telling when it listens, and leaving what to do after a signal to us."""

    def __init__(self, config: uvicorn.Config, when_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_ready = when_ready
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
        self.handle_exit(number, None)

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


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is known before anything else is opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


def _build_backend(settings: EndpointSettings, config: Config) -> Backend:
    profile = _find_profile(settings.profile, config)
    if settings.dialect == "scripted":
        script = load_script(Path(settings.script) if settings.script else None)
        return ScriptedBackend(settings.name, script)
    endpoint = Endpoint(
        name=settings.name,
        url=settings.url,
        key=settings.key.reveal() if settings.key is not None else None,
        connect_timeout_s=config.limits.connect_timeout_s,
        idle_timeout_s=config.limits.idle_timeout_s,
        max_connections=config.limits.endpoint_connections,
    )
    return ChatCompletionsBackend(endpoint, profile=profile)


def _build_aliases(config: Config) -> dict[str, Alias]:
    aliases: dict[str, Alias] = {}
    for name, model in config.models.items():
        given = model.profile or config.endpoints[model.endpoint].profile
        aliases[name] = Alias(
            endpoint=model.endpoint,
            model=model.model or name,
            profile=_find_profile(given, config),
            system_prompt=model.system_prompt,
        )
    return aliases


def _find_profile(name: str, config: Config) -> Profile | None:
    if not name:
        return None
    return config.profiles.get(name) or PROFILES[name]
