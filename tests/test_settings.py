"""Settings: one declaration behind environment, `.env`, flags, help and the example file."""

import os
from pathlib import Path

import pytest

from proxy.errors import BadBaseUrl
from proxy.llama.upstream import Upstream
from proxy.settings import PREFIX, Settings, SettingsError, example_env, flag, load

ROOT = Path(__file__).parent.parent

Env = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def env(monkeypatch: Env, tmp_path: Path) -> Env:
    """An empty environment in an empty folder."""
    for name in [name for name in os.environ if name.upper().startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def test_nothing_set_gives_the_documented_defaults() -> None:
    """Names and defaults are those that users of the Pi extension know."""
    settings, warnings = load([])
    assert [] == warnings
    expected = {
        "base_url": "http://127.0.0.1:8080/v1",
        "slot": "auto",
        "persist": False,
        "slot_dir": None,
        "cleanup": True,
        "ttl_days": 30,
        "keep_recent": 3,
        "max_gb": 0,
        "server_id": "",
        "dir": Path.home() / ".cache/pi/llama-prefix",
        "host": "127.0.0.1",
        "port": 8081,
        "admin_host": "127.0.0.1",
        "admin_port": 8082,
        "observe_only": False,
        "markers": (),
        "models": (),
        "min_prefix_tokens": 256,
        "max_silence": 25,
        "warm_timeout": 120,
        "save_timeout": 120,
        "restore_timeout": 120,
        "erase_timeout": 120,
        "control_timeout": 5,
        "drain_timeout": 30,
        "log_format": "console",
        "log_level": "info",
    }
    assert expected == {name: getattr(settings, name) for name in expected}


def test_a_flag_wins_over_the_environment_and_that_over_the_file(env: Env) -> None:
    """All three feed the same class, the nearest to the person wins."""
    Path(".env").write_text(f"{PREFIX}PORT=1\n{PREFIX}KEEP_RECENT=1\n{PREFIX}MAX_GB=1\n")
    env.setenv(f"{PREFIX}PORT", "2")
    env.setenv(f"{PREFIX}KEEP_RECENT", "2")
    settings, _ = load(["--port", "3"])
    assert (3, 2, 1) == (settings.port, settings.keep_recent, settings.max_gb)


@pytest.mark.parametrize(
    ("name", "value", "default", "to_write"),
    [
        ("PORT", "80 81", 8081, "0 to 65535"),
        ("PORT", "65536", 8081, "0 to 65535"),
        ("ADMIN_PORT", "on", 8082, "0 to 65535"),
        ("TTL_DAYS", "-1", 30, "0 or more"),
        ("MAX_GB", "nan", 0, "0 or more"),
        ("MAX_SILENCE", "inf", 25, "seconds"),
        ("KEEP_RECENT", "2.5", 3, "whole number"),
        ("SLOT", "first", "auto", "auto or a slot number"),
        ("SLOT", "-1", "auto", "auto or a slot number"),
        ("PERSIST", "maybe", False, "1 or 0"),
        ("LOG_LEVEL", "loud", "info", "debug, info"),
        ("MODELS", '["a', (), '["a", "b"]'),
    ],
)
def test_a_bad_value_falls_back_and_is_named(env: Env, name: str, value: str, default: object, to_write: str) -> None:
    """The proxy starts, and the warning says which setting, what it was and what to write."""
    env.setenv(PREFIX + name, value)
    settings, [warning] = load([])
    assert default == getattr(settings, name.lower())
    assert f"{PREFIX}{name}={value!r}" in warning
    assert to_write in warning


def test_bad_values_from_each_source_are_told_together(env: Env) -> None:
    """One slip doesn't hide the next, and the good settings beside them count."""
    Path(".env").write_text(f"{PREFIX}MAX_GB=lots\n{PREFIX}HOST=0.0.0.0\n")
    env.setenv(f"{PREFIX}PORT", "x")
    settings, warnings = load(["--keep-recent", "some"])
    assert ("0.0.0.0", 0, 8081, 3) == (settings.host, settings.max_gb, settings.port, settings.keep_recent)
    assert {"--keep-recent='some'", f"{PREFIX}PORT='x'", f"{PREFIX}MAX_GB='lots'"} == {w.split()[0] for w in warnings}


def test_an_unknown_name_is_told_with_the_nearest_known_one(env: Env) -> None:
    """A misspelt variable of the process or the file doesn't go unnoticed; variables of others do."""
    env.setenv(f"{PREFIX}PROT", "9")
    env.setenv("PI_OFFLINE", "1")
    Path(".env").write_text(f"export {PREFIX}keep_recnt=1\nOTHER=1\n")
    _, warnings = load([])
    expected = [
        f"{PREFIX}PROT in the environment is no setting; did you mean {PREFIX}PORT?",
        f"{PREFIX}keep_recnt in .env is no setting; did you mean {PREFIX}KEEP_RECENT?",
    ]
    assert expected == warnings


def test_a_name_like_none_of_ours_is_told_without_a_guess(env: Env) -> None:
    """A wrong guess would mislead."""
    env.setenv(f"{PREFIX}XYZZY", "9")
    assert [f"{PREFIX}XYZZY in the environment is no setting"] == load([])[1]


@pytest.mark.parametrize(
    "url",
    [
        "h:x/v1",
        "me:hush@h",
        "ftp://h/v1",
        "http://",
        "http:///v1",
        "http://[::1",
        "http://h:x",
        "http://h:0",
        "http://h?a=1",
    ],
)
def test_a_wrong_upstream_is_an_error(env: Env, url: str) -> None:
    """Without an address there is nothing to forward to; the message says where it stands and how one looks."""
    env.setenv(f"{PREFIX}BASE_URL", url)
    with pytest.raises(BadBaseUrl, match=f"{PREFIX}BASE_URL=.* write http://HOST:PORT/v1"):
        load([])


@pytest.mark.parametrize("url", ["http://me:hush@h/v1", "me:hush@h/v1"])
def test_a_password_in_the_upstream_is_refused_and_not_shown(url: str) -> None:
    """The message of the refusal ends in logs."""
    with pytest.raises(BadBaseUrl, match="--base-url=") as refusal:
        load(["--base-url", url])
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize("url", ["h", "h:9/v1", "localhost:8080", "127.0.0.1:8080/llm/v1/", " [::1]:8080"])
def test_an_upstream_without_a_scheme_is_http(env: Env, url: str) -> None:
    """As people write it; host, port and path are those that were meant."""
    env.setenv(f"{PREFIX}BASE_URL", url)
    settings, warnings = load([])
    assert (f"http://{url.strip()}", []) == (settings.base_url, warnings)
    assert Upstream.parse(url) == Upstream.parse(settings.base_url)


@pytest.mark.parametrize("url", ["http://h", "https://h/", "http://[::1]:8080/llm/v1/"])
def test_an_upstream_is_kept_as_written(url: str) -> None:
    """Any path may lead to the server."""
    assert url == load(["--base-url", url])[0].base_url


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\n\n# A,\nB: ", ("\n\n# A", "\nB:")),
        (r'["\n\n# A, B", " "]', ("\n\n# A, B", " ")),
        (r"a\\n,\t", ("a\\n", "\t")),
        (",,", ()),
        ("", ()),
    ],
)
def test_markers_are_read_with_escapes(written: str, read: tuple[str, ...]) -> None:
    """A line break can be written; an empty marker, which would match everywhere, can't."""
    settings, warnings = load(["--markers", written])
    assert (read, []) == (settings.markers, warnings)


def test_models_keep_their_backslashes() -> None:
    """Only markers have escapes: a model id may be a path."""
    assert (r"C:\new", "b") == load(["--models", r"C:\new, b"])[0].models


@pytest.mark.parametrize(("written", "port"), [("", None), ("9000", 9000), ("0", 0)])
def test_an_empty_admin_port_is_off(env: Env, written: str, port: int | None) -> None:
    """Empty turns the admin listener off, in the environment and as a flag."""
    env.setenv(f"{PREFIX}ADMIN_PORT", written)
    assert (port, []) == (load([])[0].admin_port, load([])[1])
    env.delenv(f"{PREFIX}ADMIN_PORT")
    assert port == load([f"--admin-port={written}"])[0].admin_port


def test_any_other_empty_variable_is_as_if_unset(env: Env) -> None:
    """Compose files hand on variables that nobody set as empty ones."""
    for name in Settings.model_fields:
        if name != "admin_port":
            env.setenv(PREFIX + name.upper(), "")
    settings, warnings = load([])
    assert [] == warnings
    assert ("http://127.0.0.1:8080/v1", 8081, None) == (settings.base_url, settings.port, settings.slot_dir)
    assert Path.home() / ".cache/pi/llama-prefix" == settings.dir


def test_secrets_are_not_shown() -> None:
    """A settings object in a log or an assertion gives nothing away."""
    settings, _ = load(["--api-key", "hush", "--admin-token", "psst"])
    assert ("hush", "psst") == (settings.api_key.get_secret_value(), settings.admin_token.get_secret_value())
    assert not [secret for secret in ("hush", "psst") if secret in repr(settings) + str(settings.model_dump())]


def test_a_switch_needs_no_value() -> None:
    """`--persist` is enough, and `--cleanup 0` turns off what is on."""
    settings, _ = load(["--persist", "--cleanup", "0", "--observe-only"])
    assert (True, False, True) == (settings.persist, settings.cleanup, settings.observe_only)


def test_words_are_read_in_any_case(env: Env) -> None:
    """`INFO` is what other programs call it."""
    env.setenv(f"{PREFIX}SLOT", "AUTO")
    env.setenv(f"{PREFIX}LOG_LEVEL", " Warning ")
    settings, warnings = load(["--log-format", "JSON"])
    assert ("auto", "warning", "json", []) == (settings.slot, settings.log_level, settings.log_format, warnings)


def test_an_unreadable_file_is_an_error_that_names_it() -> None:
    """A `.env` in another encoding is told, not a traceback."""
    Path(".env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"\.env in .* can't be read"):
        load([])


def test_the_example_file_is_what_the_class_says() -> None:
    """`python -m proxy.settings > config.example.env` has been run since the last change."""
    assert example_env() == (ROOT / "config.example.env").read_text()


def test_each_line_of_the_example_is_the_default(env: Env) -> None:
    """Uncommenting everything changes nothing and warns of nothing; no setting is missing."""
    lines = (ROOT / "config.example.env").read_text().splitlines()
    settings = [line[1:] for line in lines if line.startswith(f"#{PREFIX}")]
    assert [PREFIX + name.upper() for name in Settings.model_fields] == [line.split("=")[0] for line in settings]
    untouched = load([])
    Path(".env").write_text("\n".join(settings))
    assert untouched == load([])


def test_help_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its flag and its description; nothing else is needed to know them."""
    with pytest.raises(SystemExit) as exit_:
        load(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert 0 == exit_.value.code
    for name, field in Settings.model_fields.items():
        assert f"{flag(name)} " in shown
        assert (field.description or "-") in shown
