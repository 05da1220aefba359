"""What workers print reaches the program, with who said it; nothing of a crash's last words is lost."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from roost.actor import Actor, ProcMesh, endpoint

from .conftest import Program

HEAD = """
import logging, os, sys, time
from roost.actor import Actor, SupervisionError, current_rank, endpoint, this_host
class Talker(Actor):
    @endpoint
    def say(self, text, stream="stdout"):
        print(text.replace("RANK", str(current_rank().get("gpus", 0))), file=getattr(sys, stream))
    @endpoint
    def raw(self, data, fd=1): os.write(fd, data)
    @endpoint
    def log(self, text):
        self.logger.debug("debug " + text); self.logger.info("info " + text)
        logging.getLogger("library").info("quiet " + text)
        logging.getLogger("library").warning("warning " + text)
    @endpoint
    def own_logging(self):
        logging.basicConfig(format="MINE %(message)s", stream=sys.stdout, level=logging.INFO, force=True)
        logging.info("configured")
    @endpoint
    def die(self):
        print("half a line", end="", flush=True); os.write(2, b"the very last words"); os._exit(9)
procs = this_host().spawn_procs({"gpus": 4}, name="procs")
talkers = procs.spawn("talkers", Talker)
"""


@pytest.fixture
def run(program: Any) -> Any:
    def start(body: str, **variables: str) -> tuple[str, str]:
        made: Program = program(HEAD + body, **variables)
        status, out, err = made.end()
        assert status == 0, err
        return out, err

    return start


def test_lines_carry_their_actor_and_rank(run: Any) -> None:
    out, err = run('talkers.slice(gpus=2).say.call_one("hello").get()')
    assert out == "[talkers 2] hello\n"
    out, err = run('talkers.slice(gpus=1).say.call_one("hello", "stderr").get()')
    assert (out, err) == ("", "[talkers 1] hello\n")


def test_the_same_line_of_many_ranks_is_shown_once(run: Any) -> None:
    out, _ = run('talkers.say.call("same").get(); talkers.say.call("rank RANK").get()', ROOST_LOG_WINDOW="1s")
    assert "[talkers 0-3] (4 ranks) same\n" in out
    for rank in range(4):
        assert f"[talkers {rank}] rank {rank}\n" in out
    assert len(out.splitlines()) == 5


def test_without_a_prefix_or_at_all(run: Any) -> None:
    body = 'talkers.slice(gpus=0).say.call_one("hello").get()'
    assert run(body, ROOST_PREFIX_WITH_RANK="no")[0] == "hello\n"
    assert run(body, ROOST_ENABLE_LOG_FORWARDING="no")[0] == ""


def test_logging_of_actors_and_libraries_arrives(run: Any) -> None:
    out, err = run('talkers.slice(gpus=0).log.call_one("x").get()')
    assert out == ""
    assert err == "[talkers 0] INFO Talker: info x\n[talkers 0] WARNING library: warning x\n"
    out, err = run("talkers.slice(gpus=0).own_logging.call_one().get()")
    assert out == "[talkers 0] MINE configured\n"


def test_options_of_a_mesh(run: Any) -> None:
    out, err = run(
        """
import asyncio
asyncio.run(procs.logging_option(stream_to_client=False, aggregate_window_sec=None))
talkers.say.call("not shown").get()
asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=None, level=logging.WARNING))
talkers.slice(gpus=0).say.call_one("shown").get()
talkers.slice(gpus=0).log.call_one("x").get()
"""
    )
    assert out.splitlines()[-1] == "[talkers 0] shown"
    assert "info" not in err
    assert "warning x" in err


def test_wrong_options_are_refused(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="0 to 255"):
        asyncio.run(procs.logging_option(level=300))
    with pytest.raises(ValueError, match="seconds"):
        asyncio.run(procs.logging_option(aggregate_window_sec=-1))
    with pytest.raises(RuntimeError, match="stream_to_client"):
        asyncio.run(procs.logging_option(stream_to_client=False, aggregate_window_sec=1))


def test_nothing_of_the_last_words_is_lost(run: Any) -> None:
    out, err = run(
        """
try:
    talkers.slice(gpus=3).die.call_one().get()
except SupervisionError as error:
    print("told:", "the very last words" in str(error))
"""
    )
    assert "half a line" in out
    assert "told: True" in out
    assert "the very last words" in err


def test_anything_may_be_printed(run: Any) -> None:
    out, _ = run(
        """
t = talkers.slice(gpus=0)
t.raw.call_one(bytes(range(14, 30)) + b"\\xff\\xfe\\n").get()
t.raw.call_one(b"x" * 300_000 + b"\\n").get()
t.raw.call_one(b"no newline").get()
t.say.call_one("a\\nb\\n\\nc").get()
t.raw.call_one(b"progress 1\\rprogress 2\\n").get()
t.say.call_one("").get()
"""
    )
    assert "x" * 300_000 in out
    assert "no newline" in out
    assert len(re.findall(r"^\[talkers 0\] (a|b|c|)$", out, re.MULTILINE)) == 5
    assert "progress 2" in out


def test_lines_printed_before_an_error_come_with_it(run: Any) -> None:
    out, _ = run(
        """
for number in range(2000):
    talkers.slice(gpus=0).say.broadcast(f"line {number}")
talkers.slice(gpus=0).say.call_one("end").get()
"""
    )
    lines = [line.partition("] ")[2] for line in out.splitlines()]
    assert lines == [f"line {number}" for number in range(2000)] + ["end"]


class Noisy(Actor):
    @endpoint
    def noise(self) -> None:
        print("from a notebook cell")


def test_a_notebook_cell_shows_what_its_calls_print(program: Any) -> None:
    run: Program = program(
        """
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        def cell(source):
            shell.run_cell(source)
            print("-- end of cell", flush=True)
        cell('''
        from roost.actor import Actor, endpoint, this_host
        class Noisy(Actor):
            @endpoint
            def noise(self): print("from a cell")
        noisy = this_host().spawn_procs({"gpus": 2}).spawn("noisy", Noisy)
        ''')
        cell("noisy.noise.call().get();")
        cell("1")
        """,
        ROOST_LOG_WINDOW="30s",
    )
    status, out, err = run.end()
    assert status == 0, err
    cells = out.split("-- end of cell")
    assert "(2 ranks) from a cell" in cells[1]
