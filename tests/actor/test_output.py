"""Odd output of workers: bytes that are no text, lines without an end, floods, last words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Program

HEAD = """
import ctypes, faulthandler, os, signal, subprocess, sys, threading, time, warnings
import roost.actor
from roost.actor import Actor, SupervisionError, current_rank, endpoint, this_host
told = []
roost.actor.unhandled_fault_hook = told.append
class Talker(Actor):
    @endpoint
    def write(self, data, fd=1): os.write(fd, data)
    @endpoint
    def text(self, text, stream="stdout", flush=False):
        print(text, end="", file=getattr(sys, stream), flush=flush)
    @endpoint
    def rank(self): print("I am", dict(current_rank()))
    @endpoint
    def child(self): subprocess.run("echo from a child; echo and its errors >&2", shell=True)
    @endpoint
    def thread(self):
        thread = threading.Thread(target=print, args=("from a thread",)); thread.start(); thread.join()
    @endpoint
    def broken_thread(self):
        thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
    @endpoint
    def warn(self): warnings.warn("careful")
    @endpoint
    def replace(self):
        class Shout:
            def write(self, text): os.write(1, text.upper().encode())
            def flush(self): pass
        sys.stdout = Shout()
        print("loud")
        sys.stdout = sys.__stdout__
    @endpoint
    def flood(self, lines): print("\\n".join(f"line {n:06}" for n in range(lines)))
    @endpoint
    def about(self):
        out = sys.stdout
        return out.isatty(), out.encoding, out.fileno(), sys.stderr.fileno(), sys.stdin.read()
    @endpoint
    def die(self, how):
        sys.stdout.write("last on stdout"); sys.stderr.write("last on stderr")
        if how == "exit": os._exit(3)
        if how == "segfault": ctypes.string_at(8)
        if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if how == "abort": os.abort()
procs = this_host().spawn_procs({"gpus": 3}, name="procs")
talkers = procs.spawn("talkers", Talker)
first = talkers.slice(gpus=0)
"""

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(program: Any) -> Run:
    def start(body: str, **variables: str) -> tuple[str, str]:
        made: Program = program(HEAD + body, **variables)
        status, out, err = made.end()
        assert status == 0, err
        return out, err

    return start


def test_bytes_that_are_no_text_harm_nothing(run: Run) -> None:
    out, _ = run(
        r"""
for number in range(256):
    first.write.call_one(b"<" + bytes([number]) + b"begin\n").get()
    first.write.call_one(bytes([number]) + b"end>\n").get()
first.write.call_one(b"\x1e\x1e\x1e\n\x1eone\x1etwo\n").get()
first.write.call_one(b"\xed\xa0\x80 \xf0\x28\x8c\x28 \x00\n").get()
"""
    )
    assert out.count("begin\n") == 256
    assert out.count("end>\n") == 256
    assert "two" in out
    assert "\x00" in out


@pytest.mark.parametrize("kib", [1, 63, 64, 65, 2000])
def test_lines_of_any_length_arrive_whole(run: Run, kib: int) -> None:
    out, _ = run(f'first.text.call_one("x" * {kib * 1024} + "|\\n").get()')
    assert out == f"[talkers 0] {'x' * kib * 1024}|\n"


def test_characters_that_are_cut_by_a_read_are_joined(run: Run) -> None:
    out, _ = run(
        r"""
text = "äöü€😀" * 20000
first.text.call_one(text + "\n").get()
for byte in "€uro\n".encode():
    first.write.call_one(bytes([byte])).get()
"""
    )
    lines = out.splitlines()
    assert lines[0] == "[talkers 0] " + "äöü€😀" * 20000
    assert lines[1].endswith("] €uro")


def test_a_flood_of_lines_arrives_complete_and_in_order(run: Run) -> None:
    out, _ = run("first.flood.call_one(50_000).get()", ROOST_LOG_WINDOW="0s")
    assert re.findall(r"line (\d+)", out) == [f"{number:06}" for number in range(50_000)]


def test_ranks_that_flood_at_once_are_told_apart(run: Run) -> None:
    out, _ = run("talkers.flood.call(5_000).get()", ROOST_LOG_WINDOW="30s")
    folded = re.findall(r"^\[talkers 0-2\] \(3 ranks\) line (\d+)$", out, re.MULTILINE)
    assert folded == [f"{number:06}" for number in range(5_000)]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_pieces_of_a_line_are_shown_as_one_when_it_ends(run: Run, stream: str) -> None:
    out, err = run(
        f"""
for piece in ("one ", "two ", "three\\n", "four"):
    talkers.text.call(piece, {stream!r}, True).get()
"""
    )
    lines = (out if stream == "stdout" else err).splitlines()
    assert lines == ["[talkers 0-2] (3 ranks) one two three", "[talkers 0-2] (3 ranks) four"]


def test_children_and_threads_of_workers_are_heard_too(run: Run) -> None:
    out, err = run(
        """
for name in ("child", "thread", "broken_thread", "warn"):
    getattr(first, name).call_one().get()
"""
    )
    assert re.search(r"^\[\S+ 0\] from a child$", out, re.MULTILINE)
    assert re.search(r"^\[\S+ 0\] and its errors$", err, re.MULTILINE)
    assert re.search(r"^\[\S+ 0\] from a thread$", out, re.MULTILINE)
    assert "ZeroDivisionError" in err
    assert re.search(r"^\[talkers 0\] .*UserWarning: careful$", err, re.MULTILINE)


def test_streams_are_what_programs_expect(run: Run) -> None:
    out, _ = run("print(first.about.call_one().get()); first.replace.call_one().get()")
    assert "(False, 'utf-8', 1, 2, '')" in out
    assert "LOUD" in out


@pytest.mark.parametrize("how", ["exit", "segfault", "kill", "abort"])
def test_the_last_words_of_a_crash_are_shown_and_told(run: Run, how: str) -> None:
    out, err = run(
        f"""
error = first.die.call_one({how!r}).exception()
print("error:", isinstance(error, SupervisionError), "last on stderr" in str(error))
while not told: time.sleep(0.01)
print("failure:", repr(told[0].stderr_tail))
print("report:", "last on stderr" in told[0].report())
print("-- the program goes on")
"""
    )
    assert "error: True True" in out
    assert "failure: 'last on stderr'" in out
    assert "report: True" in out
    assert "[talkers 0] last on stderr" in err
    assert "last on stdout" in out or how == "kill"


def test_what_a_process_left_unfinished_is_shown_when_it_is_gone(run: Run) -> None:
    out, _ = run(
        """
first.write.call_one(b"unfinished").get()
first.die.call_one("kill").exception()
while not told: time.sleep(0.01)
talkers.slice(gpus=1).rank.call_one().get()
time.sleep(1)
print("-- the program goes on", flush=True)
"""
    )
    before, _, _ = out.partition("-- the program goes on")
    assert "unfinished" in before


def test_a_traceback_of_faulthandler_arrives_whole(run: Run) -> None:
    _, err = run(
        """
class Faulty(Talker):
    @endpoint
    def fault(self):
        faulthandler.enable()
        ctypes.string_at(8)
this_host().spawn_procs(name="faulty").spawn("faulty", Faulty).fault.call_one().exception()
"""
    )
    assert "Fatal Python error: Segmentation fault" in err
    assert "in fault" in err


def test_output_is_turned_off_with_one_word(run: Run) -> None:
    out, _ = run(
        """
import asyncio
async def main():
    await procs.logging_option(stream_to_client=False)
    await talkers.rank.call()
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=None)
    await talkers.slice(gpus=2).rank.call_one()
asyncio.run(main())
"""
    )
    assert out == "[talkers 2] I am {}\n"


def test_output_before_a_stop_is_shown_before_what_comes_after_it(run: Run) -> None:
    out, _ = run(
        """
talkers.rank.call().get()
procs.stop().get()
print("-- stopped", flush=True)
""",
        ROOST_LOG_WINDOW="30s",
    )
    before, _, after = out.partition("-- stopped")
    assert "I am" in before, after


@pytest.mark.parametrize(
    "name",
    [
        "naïve 😀",
        "a/b [0] c",
        "two\nlines",
    ],
)
def test_odd_names_garble_nothing(run: Run, name: str) -> None:
    out, _ = run(f'procs.slice(gpus=0).spawn({name!r}, Talker).text.call_one("said\\n").get()')
    assert len(out.splitlines()) == 1
    assert out.endswith(" 0] said\n")
