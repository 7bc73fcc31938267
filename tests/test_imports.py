"""Imports run one way: each folder uses what stands to its left, and the pure ones nothing that acts."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import proxy

ROOT = Path(proxy.__file__).parent
GROUND = ("errors", "logs", "settings")
ORDER = ("request", "checkpoints", "slots", "llama", "serving", "commands")
PURE = ("request", "slots")
ACTING = {
    "aiohttp",
    "asyncio",
    "logging",
    "os",
    "pathlib",
    "proxy.logs",
    "proxy.settings",
    "socket",
    "structlog",
    "time",
}
DEMO_USER = ROOT / "commands" / "demo.py"

FILES = sorted(ROOT.rglob("*.py"))


def imports(source: str, package: str) -> Iterator[str]:
    """Full names of all that a module imports, wherever in it, for types only too; `package` is its own."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module, names, level):
                parts = package.split(".")
                above = parts[: len(parts) - level + 1] if level else []
                origin = ".".join([*above, *([module] if module else [])])
                yield from (f"{origin}.{name.name}" for name in names)


def imported_by(path: Path) -> list[str]:
    package = ".".join(("proxy", *path.relative_to(ROOT).parts[:-1]))
    return list(imports(path.read_text(encoding="utf-8"), package))


def folder(path: Path) -> str:
    """The folder of `proxy` that a file is in, or its own name where it is in none."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def may_use(name: str) -> set[str]:
    if name in GROUND:
        return set(GROUND)
    if name in ORDER:
        return {*GROUND, *ORDER[: ORDER.index(name) + 1]}
    return {*GROUND, *ORDER, "demo"}


def own(name: str) -> str | None:
    """Which of our folders an imported name is in; the package itself (its version) is nobody's."""
    parts = name.split(".")
    known = {*GROUND, *ORDER, "demo"}
    return parts[1] if parts[0] == "proxy" and len(parts) > 1 and parts[1] in known else None


def is_allowed(path: Path, name: str) -> bool:
    used = own(name)
    return used is None or used in may_use(folder(path)) or (used == "demo" and path == DEMO_USER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_stands_to_its_left(path: Path) -> None:
    """request, checkpoints, slots, llama, serving, commands; settings, logs and errors below all of them."""
    if folder(path) in {"__init__", "__main__", "demo"}:
        allowed = {*GROUND, *ORDER} | ({"demo"} if folder(path) == "demo" else set())
        assert [] == [name for name in imported_by(path) if own(name) not in {None, *allowed}]
    else:
        assert [] == [name for name in imported_by(path) if not is_allowed(path, name)]


@pytest.mark.parametrize("name", PURE)
def test_a_pure_folder_imports_nothing_that_acts(name: str) -> None:
    """No clock, file, socket, event loop, logger or settings object: a decision takes values and returns one."""
    for path in (ROOT / name).rglob("*.py"):
        for imported in imported_by(path):
            parts = imported.split(".")
            assert not {parts[0], ".".join(parts[:2])} & ACTING, f"{path.relative_to(ROOT)} imports {imported}"


def test_every_folder_has_its_place() -> None:
    """A new one must be put into the order first."""
    assert {*ORDER, "demo"} == {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert {*GROUND, "__init__", "__main__"} == {path.stem for path in ROOT.glob("*.py")}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import proxy.demo.models as m", ["proxy.demo.models"]),
        ("from proxy import serving", ["proxy.serving"]),
        ("from proxy.serving.engine import Engine", ["proxy.serving.engine.Engine"]),
        ("def f():\n    from . import plan", ["proxy.slots.plan"]),
        ("if TYPE_CHECKING:\n    from ..serving import engine", ["proxy.serving.engine"]),
        ("from .. import demo", ["proxy.demo"]),
    ],
)
def test_no_way_of_importing_goes_unseen(source: str, expected: list[str]) -> None:
    assert expected == list(imports(source, "proxy.slots"))


def test_what_is_forbidden_is_told_apart() -> None:
    slots, serving = ROOT / "slots" / "plan.py", ROOT / "serving" / "app.py"
    assert not is_allowed(slots, "proxy.llama.client")
    assert is_allowed(serving, "proxy.llama.client")
    assert not is_allowed(serving, "proxy.commands.serve")
    assert not is_allowed(serving, "proxy.demo.models")
    assert is_allowed(DEMO_USER, "proxy.demo.models")
    assert not is_allowed(ROOT / "errors.py", "proxy.request.body")
    assert is_allowed(serving, "proxy.__version__")
