"""Headless Chromium, driven by its own protocol over aiohttp, which lightning requires."""

import asyncio
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

AXE = Path(__file__).parents[1] / "node_modules/axe-core/axe.min.js"
SECONDS = 120  # for a browser on a busy machine


def chromium() -> str:
    """Where the browser is."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium: apt-get install chromium")
    return found


def axe() -> str:
    """The source of axe-core."""
    if not AXE.is_file():
        pytest.skip("no axe-core: make axe")
    return AXE.read_text(encoding="utf-8")


class Tab:
    """A tab, its problems (errors, warnings, exceptions) and requests (not those inside the page) since it opened."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future] = {}
        self._events: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.problems: list[str] = []
        self.requests: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
                continue
            event, what = told["method"], told["params"]
            if event == "Network.requestWillBeSent" and not what["request"]["url"].startswith(("data:", "blob:")):
                self.requests.append(what["request"]["url"])
            of_console = what.get("type") in ("error", "warning", "assert")
            of_log = what.get("entry", {}).get("level") in ("error", "warning")
            if event == "Runtime.exceptionThrown" or of_console or of_log:
                self.problems.append(str(what))
            self._events[event].set()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, https://chromedevtools.github.io/devtools-protocol/."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        said = await asyncio.wait_for(answer, SECONDS)
        assert "error" not in said, (method, said)
        return said["result"]

    async def open(self, page: Path, width: int = 1280, theme: str = "light") -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.resize(width)
        await self.theme(theme)
        self._events["Page.loadEventFired"].clear()
        await self.call("Page.navigate", url=page.resolve().as_uri())
        await asyncio.wait_for(self._events["Page.loadEventFired"].wait(), SECONDS)

    async def resize(self, width: int) -> None:
        how = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **how)

    async def theme(self, theme: str) -> None:
        """What the reader's system prefers: `light` or `dark`."""
        wanted = [{"name": "prefers-color-scheme", "value": theme}]
        await self.call("Emulation.setEmulatedMedia", features=wanted)

    async def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        said = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")


@asynccontextmanager
async def browser_tab() -> AsyncIterator[Tab]:
    """A tab in a browser of its own, that ends with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        process = await asyncio.create_subprocess_exec(
            *(chromium(), *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(SECONDS):
                while not (file := Path(profile, "DevToolsActivePort")).is_file() or not file.read_text().strip():
                    await asyncio.sleep(0.05)
            port = file.read_text().split()[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [each for each in await answer.json() if each["type"] == "page"]
                async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    tab = Tab(socket)
                    listening = asyncio.create_task(tab.listen())
                    yield tab
                    await tab.call("Browser.close")
                    listening.cancel()
        finally:
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()
