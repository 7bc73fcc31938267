"""The compose file: valid by its own schema, and set up so that nothing that is known to go wrong can."""

import shlex
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

from proxy.demo.servers import ServerBinary
from proxy.settings import Settings
from tests.packaging.files import COMPOSE, SETTINGS, compose, image_environment, instruction

LLAMA = ("llama-cpu", "llama-gpu")


@pytest.fixture
def services() -> dict[str, Any]:
    return compose()


def _mounts(service: dict[str, Any]) -> dict[str, str]:
    """Volume or directory → where it is mounted."""
    return {name: rest.split(":")[0] for name, _, rest in (mount.partition(":") for mount in service["volumes"])}


def _flag(service: dict[str, Any], name: str) -> str:
    command: list[str] = service["command"]
    return command[command.index(name) + 1]


def test_compose_file_is_valid() -> None:
    """By the schema of the compose specification."""
    ended = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr


def test_only_the_proxy_is_published_and_only_to_this_machine(services: dict[str, Any]) -> None:
    """Whoever reaches llama-server can use it past the proxy: it has no port and a network of its own."""
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert {"proxy": ["127.0.0.1:8081:8081"]} == published
    for name in LLAMA:
        assert ["inside"] == list(services[name]["networks"])
    assert "internal: true" in COMPOSE.read_text()


def test_upstream_is_a_service_not_localhost(services: dict[str, Any]) -> None:
    """Inside a container `localhost` is the container: the proxy asks for a name that both server variants bear."""
    upstream = urlsplit(services["proxy"]["environment"]["PI_PREFIX_CACHE_BASE_URL"])
    for name in LLAMA:
        assert upstream.hostname in services[name]["networks"]["inside"]["aliases"]
        assert upstream.port == int(_flag(services[name], "--port"))


def test_slot_files_are_shared_under_one_number(services: dict[str, Any]) -> None:
    """Server and proxy run under the image's own number and see the same volume where each expects it."""
    proxy = services["proxy"]
    where = _mounts(proxy)["slots"]
    assert where == proxy["environment"]["PI_PREFIX_CACHE_SLOT_DIR"]
    for name in LLAMA:
        assert where == _mounts(services[name])["slots"]
        assert where == _flag(services[name], "--slot-save-path").rstrip("/")
        assert instruction("USER") == services[name]["user"]
        assert _mounts(proxy)["./models"] == _mounts(services[name])["./models"]


def test_directories_are_made_before_either_starts(services: dict[str, Any]) -> None:
    """One service makes every volume's directory, for the right number, and all others wait for it to end."""
    maker = services["directories"]
    uid, _, gid = instruction("USER").partition(":")
    made = {}
    for line in maker["command"][0].splitlines():
        _, *flags, path = shlex.split(line)
        made[path] = dict(zip(flags[1::2], flags[2::2], strict=True))
    assert set(_mounts(maker).values()) == set(made)
    assert {uid} == {flags["-o"] for flags in made.values()}
    assert {gid} == {flags["-g"] for flags in made.values()}
    assert made["/slots"]["-m"].startswith("2")
    for name in ("proxy", *LLAMA):
        assert "service_completed_successfully" == services[name]["depends_on"]["directories"]["condition"]


def test_either_may_start_first(services: dict[str, Any]) -> None:
    """Nobody waits for the other to be well, and the proxy starts with neither variant of the server."""
    for name in LLAMA:
        assert {"directories"} == set(services[name]["depends_on"])
        order = services["proxy"]["depends_on"][name]
        assert {"condition": "service_started", "required": False} == order


def test_variants_of_the_server_are_profiles(services: dict[str, Any]) -> None:
    """One of the two is chosen by its profile; the proxy needs none."""
    profiles = {name: service.get("profiles") for name, service in services.items()}
    assert {"directories": None, "proxy": None, "llama-cpu": ["cpu"], "llama-gpu": ["gpu"]} == profiles
    assert services["llama-gpu"]["image"] == services["llama-cpu"]["image"] + "-cuda"


def test_proxy_is_confined_and_has_time_to_drain(services: dict[str, Any]) -> None:
    """Read-only root filesystem, no capability, and longer to stop than answers are given to end."""
    proxy = services["proxy"]
    assert proxy["read_only"] is True
    assert ["ALL"] == proxy["cap_drop"]
    assert float(proxy["stop_grace_period"].removesuffix("s")) > Settings.model_fields["drain_timeout"].default + 10
    state = image_environment()["PI_PREFIX_CACHE_DIR"]
    assert state == proxy["environment"]["PI_PREFIX_CACHE_DIR"]
    assert state in _mounts(proxy).values()


def test_variables_are_settings(services: dict[str, Any]) -> None:
    """No name of ours in the file is a misspelt one."""
    assert set() == {name for name in services["proxy"]["environment"] if name not in SETTINGS}


def test_flags_are_known_to_the_server(services: dict[str, Any], llama_binary: ServerBinary) -> None:
    """Every flag that the compose file gives llama-server is one."""
    told = subprocess.run(
        [llama_binary.path, "--help"], env=dict(llama_binary.environment), capture_output=True, text=True, check=False
    )
    known = set(told.stdout.replace(",", " ").split())
    flags = {word for name in LLAMA for word in services[name]["command"] if word.startswith("--")}
    assert flags
    assert set() == flags - known
    assert "LLAMA_ARG_N_GPU_LAYERS" in told.stdout
