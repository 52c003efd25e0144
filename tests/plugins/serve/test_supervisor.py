"""An engine process: its answers, its errors, its end, and the next one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from ninfer_core.api import (
    ArtifactError,
    CapacityError,
    ContextLengthError,
    Grammar,
    PreparedPrompt,
    RequestError,
    SamplingParams,
)
from ninfer_core.engine.request import (
    Finished,
    GenerationRequest,
    Reading,
    Started,
    TextDelta,
    Usage,
)
from ninfer_serve.service import EngineGone
from ninfer_serve.supervisor import Patience, Supervisor

PATIENCE = Patience(ask=0.05, restart=0.05, stop=10)


def ask(length=5, max_tokens=8, **fields):
    ids = tuple((7 * i) % 200 + 1 for i in range(length))
    fields = {"ignore_eos": True, **fields}
    return GenerationRequest(PreparedPrompt(ids, ""), SamplingParams(), max_tokens, **fields)


class Taker:
    """A sink; `end` is the last event when it has come."""

    def __init__(self):
        self.events, self._ended = [], asyncio.Event()

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, Finished):
            self._ended.set()

    async def end(self):
        await self._ended.wait()
        return self.events[-1]


@pytest.fixture
def run(tiny_launch):
    """``(test(supervisor), patience, **launch options)``."""

    def run(test, patience=PATIENCE, **options):
        async def inside():
            supervisor = Supervisor(tiny_launch(**options), patience=patience)
            async with asyncio.timeout(90):
                await supervisor.start()
                try:
                    await test(supervisor)
                finally:
                    await supervisor.close()
            assert supervisor.pid is None

        asyncio.run(inside())

    return run


async def until(condition, limit_s=30):
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


async def answer(supervisor, request):
    taker = Taker()
    await supervisor.submit(request, taker)
    return await taker.end()


def test_requests_are_answered_and_refused(run):
    async def test(supervisor):
        takers = [Taker() for _ in range(4)]
        numbers = [await supervisor.submit(ask(30 + i), each) for i, each in enumerate(takers)]
        assert len({*numbers}) == 4
        for taker in takers:
            end = await taker.end()
            assert (end.reason, len(end.token_ids), end.cause) == ("output-limit", 8, None)
            kinds = [type(event) for event in taker.events]
            assert kinds[:2] == [Started, Reading] and TextDelta in kinds
        again = await answer(supervisor, ask(30))
        assert again.token_ids == (await takers[0].end()).token_ids
        with pytest.raises(ContextLengthError, match=r"512 tokens.*sequence of 512"):
            await supervisor.submit(ask(512), print)
        with pytest.raises(RequestError, match="token ids that do not exist"):
            await supervisor.submit(
                GenerationRequest(PreparedPrompt((10**6,), ""), SamplingParams(), 1), print)
        with pytest.raises(RequestError, match="grammar"):
            await supervisor.submit(ask(grammar=Grammar("json"), ignore_eos=False), print)
        assert (await answer(supervisor, ask(max_tokens=0))).token_ids == ()
        await until(lambda: (supervisor.status()["engine"] or {}).get("running") == 0)
        status = supervisor.status()
        assert (status["state"], status["restarts"]) == ("ok", 0)
        assert 0 <= status["heard_s"] < 5
        assert any(line.startswith("conversation: 3") for line in status["held"])

    run(test)


def test_more_than_run_and_wait_are_refused_and_a_cancelled_one_makes_room(run):
    async def test(supervisor):
        takers = [Taker() for _ in range(3)]
        numbers = [await supervisor.submit(ask(max_tokens=490), each) for each in takers]
        with pytest.raises(CapacityError, match="3 of 3"):
            await supervisor.submit(ask(), print)
        supervisor.cancel(numbers[2])
        assert (await takers[2].end()).reason == "cancelled"
        supervisor.cancel(numbers[0])
        supervisor.cancel(numbers[0])
        supervisor.cancel(10**9)
        assert (await takers[0].end()).reason == "cancelled"
        assert (await answer(supervisor, ask())).reason == "output-limit"

    run(test, max_concurrency=1, max_queue=2)


def test_a_thousand_that_leave_leave_nothing(run):
    """While they are submitted, wait, read and write."""
    async def test(supervisor):
        async def come_and_go(number):
            taker = Taker()
            task = asyncio.ensure_future(supervisor.submit(ask(20 + number % 200, 200), taker))
            if number % 3 == 0:
                await asyncio.sleep(0)
                task.cancel()
            try:
                supervisor.cancel(await task)
            except (asyncio.CancelledError, CapacityError):
                return
            assert (await taker.end()).reason in ("cancelled", "output-limit")

        for begin in range(0, 1000, 50):
            await asyncio.gather(*(come_and_go(begin + each) for each in range(50)))
        await until(lambda: not supervisor._calls)
        await until(lambda: supervisor.status()["engine"]["running"] == 0)
        assert (await answer(supervisor, ask())).reason == "output-limit"

    run(test, max_queue=100)


def test_an_engine_that_is_to_end_is_not_said_to_be_lost(run, caplog):
    async def test(supervisor):
        supervisor.kill()
        await until(lambda: not supervisor._line)
        await asyncio.sleep(0.5)
        assert (supervisor.state, supervisor.restarts) == ("stopping", 0)

    run(test)
    assert "starts again" not in caplog.text


def test_a_killed_engine_fails_its_requests_and_is_replaced(run, caplog):
    async def test(supervisor):
        for kills in (1, 2):
            running = [Taker() for _ in range(4)]
            for each in running:
                await supervisor.submit(ask(max_tokens=500), each)
            for each in running:
                await until(lambda events=each.events: TextDelta in map(type, events))
            killed = time.monotonic()
            os.kill(supervisor.pid, signal.SIGKILL)
            pending = asyncio.ensure_future(supervisor.submit(ask(), print))
            for each in running:
                end = await each.end()
                assert (end.reason, type(end.cause)) == ("error", EngineGone)
                texts = sum(isinstance(event, TextDelta) for event in each.events)
                assert end.usage == Usage(5, texts) and end.timings.queue_s >= 0
                assert (end.timings.prefill_tokens > 0) == (Reading(5) in each.events)
                assert (end.timings.decode_s > 0) == (texts > 0)
            with pytest.raises(EngineGone):
                await pending
            assert time.monotonic() - killed < 2
            assert supervisor.state == "restarting"
            with pytest.raises(EngineGone, match="starts again"):
                await supervisor.submit(ask(), print)
            await until(lambda: supervisor.state == "ok")
            assert (await answer(supervisor, ask())).reason == "output-limit"
            assert supervisor.restarts == kills

    run(test)
    assert caplog.text.count("the engine was ended by SIGKILL, and starts again") == 2


@pytest.mark.parametrize("after_s", [0, 0.02, 0.3])
def test_stopping_while_another_engine_is_loaded_does_not_wait_for_it(run, after_s):
    """It would read that it is to stop only when it has loaded."""
    async def test(supervisor):
        os.kill(supervisor.pid, signal.SIGKILL)
        await until(lambda: supervisor.restarts == 1)
        await asyncio.sleep(after_s)
        stopped = time.monotonic()
        await supervisor.close()
        assert time.monotonic() - stopped < 2

    run(test)


def test_an_engine_that_stands_still_is_said_to_be_stalled(run):
    async def test(supervisor):
        taker = Taker()
        await supervisor.submit(ask(max_tokens=400), taker)
        os.kill(supervisor.pid, signal.SIGSTOP)
        await until(lambda: supervisor.state == "stalled")
        os.kill(supervisor.pid, signal.SIGCONT)
        await until(lambda: supervisor.state == "ok")
        assert (await taker.end()).reason == "output-limit"

    run(test, Patience(ask=0.05, stall=0.5, stop=10))


def test_what_keeps_the_first_engine_from_loading_is_raised(tiny_launch, tmp_path):
    async def start(**options):
        supervisor = Supervisor(tiny_launch(**options), patience=PATIENCE)
        try:
            await supervisor.start()
        finally:
            await supervisor.close()

    broken = tmp_path / "broken.ninfer"
    broken.write_bytes(b"junk")
    with pytest.raises(ArtifactError, match="broken"):
        asyncio.run(start(model=str(broken)))
    with pytest.raises(CapacityError):
        asyncio.run(start(context_capacity=1 << 45))


def test_an_engine_that_dies_while_it_loads(tiny_launch):
    async def test():
        supervisor = Supervisor(tiny_launch(), patience=PATIENCE, command="raise SystemExit(3)")
        with pytest.raises(EngineGone, match="while it was loading"):
            await supervisor.start()
        await supervisor.close()

    asyncio.run(test())


def test_stopping_ends_what_runs(tiny_launch):
    async def test():
        supervisor, taker = Supervisor(tiny_launch(), patience=PATIENCE), Taker()
        await supervisor.start()
        pid = supervisor.pid
        await supervisor.submit(ask(max_tokens=500), taker)
        await supervisor.close()
        assert (await taker.end()).reason in ("cancelled", "error")
        with pytest.raises(EngineGone):
            await supervisor.submit(ask(), print)
        assert not is_alive(pid)

    asyncio.run(test())


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("moment", ["loading", "serving"])
def test_a_killed_server_leaves_no_engine(tiny_launch, moment, tmp_path):
    launch, program = tiny_launch(), tmp_path / "server.py"
    (tmp_path / "launch").write_bytes(__import__("ninfer_serve.wire").wire.pack(launch)[4:])
    program.write_text(textwrap.dedent(f"""
        import asyncio
        from ninfer_serve import wire
        from ninfer_serve.supervisor import Supervisor

        async def main():
            launch = wire.to_engine.decode(open({str(tmp_path / "launch")!r}, "rb").read())
            supervisor = Supervisor(launch)
            start = asyncio.ensure_future(supervisor.start())
            while supervisor.pid is None:
                await asyncio.sleep(0.01)
            if {moment == "serving"}:
                await start
            print(supervisor.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """))
    server = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE)
    with server:
        pid = int(server.stdout.readline())
        assert is_alive(pid)
        server.kill()
    end = time.monotonic() + 5
    while is_alive(pid):
        assert time.monotonic() < end
        time.sleep(0.02)
