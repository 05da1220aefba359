"""Settings: where their values come from, how they are read, and that workers have them too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roost
from roost import config
from roost.actor import Actor, endpoint, this_host


@pytest.fixture(autouse=True)
def nothing_set() -> Iterator[None]:
    config.clear_runtime_config()
    yield
    config.clear_runtime_config()


@pytest.mark.parametrize(
    ("given_as", "seconds"),
    [("5s", 5.0), ("200ms", 0.2), ("1m 30s", 90.0), (2, 2.0), (0.5, 0.5), (timedelta(minutes=2), 120.0)],
)
def test_durations_are_text_numbers_or_timedeltas(given_as: object, seconds: float) -> None:
    config.configure(cleanup_timeout=given_as)
    assert config.get("cleanup_timeout") == seconds


@given(st.integers(0, 10**12))
def test_a_duration_that_is_shown_reads_back_as_itself(microseconds: int) -> None:
    shown = config.show_duration(microseconds / 1e6)
    config.configure(cleanup_timeout=shown)
    assert config.get("cleanup_timeout") == pytest.approx(microseconds / 1e6, rel=1e-12)


@pytest.mark.parametrize("text", ["4GiB", "4 gib", 4 << 30])
def test_sizes_are_bytes_or_text(text: object) -> None:
    config.configure(shared_memory_limit=text)
    assert config.get("shared_memory_limit") == 4 << 30


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'cleanup_timeout'"):
        config.configure(cleanup_timout="5s")


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup_timeout": "soon"},
        {"cleanup_timeout": -1},
        {"cleanup_timeout": None},
        {"cleanup_timeout": True},
        {"enable_log_forwarding": "yes"},
        {"tail_log_lines": 1.5},
        {"shared_memory_limit": "4 elephants"},
    ],
)
def test_a_value_of_another_kind_is_refused_and_changes_nothing(settings: dict[str, object]) -> None:
    before = config.get_global_config()
    with pytest.raises(TypeError, match=next(iter(settings))):
        config.configure(log_window="1s", **settings)
    assert config.get_global_config() == before


def test_configured_ends_with_its_block() -> None:
    config.configure(log_window="1s")
    with config.configured(log_window="3s", tail_log_lines=5) as applied:
        assert applied["log_window"] == "3s"
        assert config.get("tail_log_lines") == 5
    assert config.get_runtime_config() == {"log_window": "1s"}


def test_precedence_is_runtime_environment_file_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('log_window = "1s"\ncleanup_timeout = 7\ntail_log_lines = 3\n')
    code = "from roost import config; config.configure(log_window='4s'); print(config.get_global_config())"
    env = {**os.environ, "ROOST_CONFIG": str(file), "ROOST_CLEANUP_TIMEOUT": "9s"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    for part in ("'log_window': '4s'", "'cleanup_timeout': '9s'", "'tail_log_lines': 3"):
        assert part in done.stdout
    assert "'stop_grace_period': '10s'" in done.stdout


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_TAIL_LOG_LINES", "many")
    with pytest.raises(TypeError, match="ROOST_TAIL_LOG_LINES"):
        config.get("tail_log_lines")


@pytest.mark.parametrize("name", sorted(config.get_global_config()))
def test_check_finds_each_setting_that_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config.check()
    monkeypatch.setenv(f"ROOST_{name.upper()}", "-1 parsecs")
    with contextlib.suppress(TypeError):
        config.get(name)
        return  # a text: anything will do
    with pytest.raises(TypeError, match=f"ROOST_{name.upper()}"):
        config.check()


@pytest.mark.parametrize("name", ["LOG_WINDOW", "ENABLE_LOG_FORWARDING", "PREFIX_WITH_RANK"])
def test_a_program_with_a_wrong_setting_says_so_and_does_not_start(name: str) -> None:
    code = "from roost.actor import this_host; this_host().spawn_procs({'gpus': 1}); print('started')"
    env = {**os.environ, f"ROOST_{name}": "soon"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert f"TypeError: ROOST_{name}" in done.stderr


def test_what_programs_of_others_set_is_accepted_and_says_so() -> None:
    config.configure(message_delivery_timeout="60s", mesh_proc_spawn_max_idle="2m")
    assert config.get_runtime_config()["mesh_proc_spawn_max_idle"] == "2m"
    assert "no effect" in config.describe("message_delivery_timeout")
    assert "no effect" not in config.describe("cleanup_timeout")


class Reader(Actor):
    @endpoint
    def setting(self, name: str) -> object:
        return config.get(name)


def test_new_processes_have_the_settings_of_their_program() -> None:
    with config.configured(cleanup_timeout="11s"):
        procs = this_host().spawn_procs({"gpus": 1}, env={"ROOST_TAIL_LOG_LINES": "4"})
    reader = procs.spawn("reader", Reader)
    assert reader.setting.call_one("cleanup_timeout").get() == 11.0
    assert reader.setting.call_one("tail_log_lines").get() == 4
    procs.stop().get()
    later = this_host().spawn_procs({"gpus": 1})  # after the block: nothing of it is left on the host
    assert later.spawn("reader", Reader).setting.call_one("cleanup_timeout").get() == 3.0
    later.stop().get()


def test_the_package_has_the_functions_too() -> None:
    assert roost.configure is config.configure
    assert roost.Extent(["gpus"], [2]).nelements == 2
    with pytest.raises(AttributeError, match="no_such_name"):
        roost.no_such_name  # noqa: B018
