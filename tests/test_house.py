"""The architecture rules: allowed imports, access to the disk, and the maximum length of files and functions.

The rules are those of docs/architecture.md. The tests parse the source with `ast` and import nothing of the product.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("mqstore", "storage_core", "connector", "command_line", "pyspark_mqstore")
EVERYTHING = (*PRODUCT, "tools", "examples", "benchmarks", "tests")

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
LONGEST_FILE, LONGEST_FUNCTION, MOST_FILES = 400, 50, 15

SYSTEM = "storage_core.files.system"
PROCESSES = "storage_core.files.processes"
BELOW_AN_ENGINE = (
    "storage_core.store", "storage_core.finding", "storage_core.job", "storage_core.options", "storage_core.conditions",
    "storage_core.input_columns", "storage_core.files", "storage_core.closable", "storage_core.progress",
    "storage_core.arrays", "storage_core.errors", "storage_core.stream", "storage_core.repair",
)  # fmt: skip
LOWEST = ("storage_core.arrays", "storage_core.closable", "storage_core.errors")
PUBLIC = (
    "storage_core.stream", "storage_core.store", "storage_core.store_names", "storage_core.option_table",
    "storage_core.options", "storage_core.progress", *LOWEST,
)  # fmt: skip


def rooms_of(engine: str, rooms: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """What each sub-package of an engine may import: itself, the packages listed, and those below all engines."""
    own = f"storage_core.{engine}"
    below = (*BELOW_AN_ENGINE, "storage_core.formats")
    walls = {
        f"{own}.{room}": (f"{own}.{room}", *(f"{own}.{other}" for other in reach.split()), *below)
        for room, reach in rooms.items()
    }
    return {own: (own, *below), f"{own}.schema": below, **walls}


# The prefixes of dotted names that a module may import, by prefix of its own name. The longest matching key decides.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "storage_core.arrays": (),
    "storage_core.errors": (),
    "storage_core.closable": (),
    "storage_core.compiled": ("storage_core.compiled",),
    "storage_core.formats": (*LOWEST, "storage_core.formats", "storage_core.compiled"),
    "storage_core.files": (
        "storage_core.files",
        "storage_core.compiled",
        "storage_core.closable",
        "storage_core.errors",
    ),
    "storage_core.finding": (),
    "storage_core.python_input": ("storage_core.errors",),
    "storage_core.store": ("storage_core.finding", "storage_core.python_input", *LOWEST),
    "storage_core.store_names": (),
    "storage_core.stream": ("storage_core.stream", "storage_core.store", *LOWEST),
    "storage_core.options": ("storage_core.options", "storage_core.store", "storage_core.errors"),
    "storage_core.input_columns": ("storage_core.formats", "storage_core.arrays", "storage_core.errors"),
    "storage_core.conditions": ("storage_core.store", "storage_core.formats"),
    "storage_core.job": ("storage_core.store", "storage_core.files", "storage_core.errors"),
    "storage_core.repair": (
        "storage_core.repair",
        "storage_core.job",
        "storage_core.files",
        "storage_core.progress",
        "storage_core.errors",
    ),
    **rooms_of(
        "rocketmq",
        {
            "disk": "",
            "index": "disk",
            "recovery": "disk",
            "read": "recovery index disk schema",
            "write": "recovery index disk schema",
            "stream": "read write recovery index disk schema",
            "verify": "index recovery disk",
            "repair": "verify write index recovery disk",
            "views": "verify read index recovery disk schema",
        },
    ),
    **rooms_of(
        "rabbitmq",
        {
            "disk": "",
            "message_store": "disk",
            "index": "message_store disk",
            "paging": "index disk",
            "read": "index message_store disk schema",
            "write": "read index message_store disk schema",
            "queue": "paging write read index message_store disk",
            "stream": "read index message_store disk schema",
            "quorum": "read index disk schema",
            "stream_queues": "read index disk schema",
            "verify": "read index message_store disk",
            "repair": "verify write read index message_store disk",
            "views": "verify read index message_store disk",
        },
    ),
    "storage_core": ("storage_core",),
    "connector": ("connector", *PUBLIC, "storage_core:door"),
    "command_line": ("command_line", *PUBLIC, "storage_core:door"),
    "pyspark_mqstore": ("pyspark_mqstore", "connector"),
    "mqstore": ("mqstore", "pyspark_mqstore", "storage_core.errors", "storage_core:door"),
}
DOOR = {"storage_core", "storage_core.copy_store", "storage_core.open_store", "storage_core.find_stores"}
# An engine or format of one system must not depend on those of the other.
STRANGERS = {"rocketmq": "rabbitmq", "rabbitmq": "rocketmq"}

SPARK = {"pyspark", "py4j", "pandas"}
DISK = {"mmap", "pathlib", "shutil", "tempfile", "glob", "fcntl", "subprocess", "fileinput"}
PURE_FORBIDDEN = DISK | {"os", "threading", "multiprocessing", "socket", "_thread", "concurrent", "asyncio"}
# Names of `os` that neither read nor write a file.
HARMLESS_OS = {
    "environ", "getpid", "cpu_count", "sched_getaffinity", "stat_result", "uname", "fspath", "PathLike", "fsencode",
    "fsdecode", "sep", "getcwd",
}  # fmt: skip
PURE_PATH = {
    "join",
    "basename",
    "dirname",
    "normpath",
    "abspath",
    "split",
    "splitext",
    "isabs",
    "commonpath",
    "relpath",
}
# A task checks whether its machine sees the store at all, to name the machine in its error. This opens no file.
LOOKS = {"connector.batches": {"isdir"}}
HARMLESS_IO = {"BytesIO", "StringIO"}
# Other calls that open files.
OPENERS = {"fromfile", "tofile", "memmap", "memory_map", "OSFile", "LocalFileSystem", "read_bytes", "read_text"}


def sources(*packages: str) -> list[Path]:
    """The Python files of these top-level folders."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    """Dotted name of a file of this checkout."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every imported dotted name, also inside functions and under TYPE_CHECKING; `from a import b` yields `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this house"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def attributes_of(tree: ast.AST, package: str) -> Iterator[str]:
    """The attributes used of a package that was imported as a whole, as `package.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == package:
            yield f"{package}.{node.attr}"


def under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def wall_breaks(module: str, source: str) -> list[str]:
    """The forbidden imports in `source`, the text of `module`."""
    room = max((room for room in MAY_IMPORT if under(module, room)), key=len)
    allowed = MAY_IMPORT[room]
    broken = []
    tree = ast.parse(source)
    for name in [*imports(tree), *attributes_of(tree, "storage_core")]:
        if name.split(".")[0] in PRODUCT:
            through_door = "storage_core:door" in allowed and name in DOOR
            if not through_door and not any(under(name, reach) for reach in allowed):
                broken.append(f"{module} imports {name}")
        for own, other in STRANGERS.items():
            if own in module.split(".") and other in name.split("."):
                broken.append(f"{module} imports {name}: the engines do not know each other")
        top = name.split(".")[0]
        if top in SPARK and not under(module, "connector"):
            broken.append(f"{module} imports {name}: Spark is the connector's alone")
        if under(module, "storage_core.formats") and top in PURE_FORBIDDEN:
            broken.append(f"{module} imports {name}: formats are pure")
    return broken


def disk_touches(module: str, source: str) -> list[str]:
    """The places in `source` that access the disk other than through `files/system.py`."""
    if module in (SYSTEM, PROCESSES):
        return []
    tree = ast.parse(source)
    touches = [f"{module} imports {name}" for name in imports(tree) if name.split(".")[0] in DISK]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            touches.append(f"{module}:{node.lineno} open()")
        elif isinstance(node, ast.Attribute) and node.attr in LOOKS.get(module, ()):
            continue
        elif isinstance(node, ast.Attribute) and reaches_the_disk(node):
            touches.append(f"{module}:{node.lineno} {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom) and node.module in {"os", "os.path", "io"}:
            harmless = {"os": HARMLESS_OS, "os.path": PURE_PATH, "io": HARMLESS_IO}[node.module]
            touches += [f"{module} from {node.module} import {a.name}" for a in node.names if a.name not in harmless]
    return touches


def reaches_the_disk(node: ast.Attribute) -> bool:
    """True for `os.stat`, `os.path.exists`, `io.open`, `numpy.memmap` and the like."""
    owner = ast.unparse(node.value)
    harmless = {"os": HARMLESS_OS | {"path"}, "os.path": PURE_PATH, "io": HARMLESS_IO}.get(owner)
    return node.attr in OPENERS if harmless is None else node.attr not in harmless


def long_functions(source: str) -> list[str]:
    """Functions over the limit, decorators and docstring included."""
    return [
        f"{node.name} at line {node.lineno}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]


def test_imports_go_down_only() -> None:
    broken = [line for path in sources(*PRODUCT) for line in wall_breaks(module_of(path), path.read_text())]
    assert broken == []


def import_circle(edges: dict[str, set[str]]) -> list[str]:
    """The first import cycle found, as module names; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_circles_of_imports() -> None:
    """Annotations count too: modules that need each other belong together, or share a third module."""
    modules = {module_of(path): ast.parse(path.read_text()) for path in sources(*PRODUCT)}
    edges: dict[str, set[str]] = {module: set() for module in modules}
    for module, tree in modules.items():
        for name in imports(tree):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name != module:
                edges[module].add(name)
        edges[module].discard("")
    assert import_circle(edges) == []
    assert set(import_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    folders: dict[Path, int] = {}
    for path in sources("mqstore", "storage_core", "command_line", "pyspark_mqstore"):
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
    assert len(folders) > 15
    assert {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > MOST_FILES} == {}


def test_no_circles_of_folders() -> None:
    """Folders must not import each other; but the files directly in an engine's folder may use all folders below it."""
    edges: dict[str, set[str]] = {}
    for path in sources("storage_core"):
        own = str(path.parent.relative_to(ROOT)).replace("/", ".")
        for name in imports(ast.parse(path.read_text())):
            other = folder_of(name)
            if other and other != own and not under(other, own) and not under(own, other):
                edges.setdefault(own, set()).add(other)
    assert len(edges) > 10
    assert import_circle(edges) == []


def folder_of(name: str) -> str:
    """The package of storage_core that contains an imported name, dotted; empty for other names."""
    parts = name.split(".")
    while parts and not (ROOT / "/".join(parts)).is_dir():
        parts.pop()
    return ".".join(parts) if parts[:1] == ["storage_core"] else ""


def test_one_door_to_the_operating_system() -> None:
    rooms = sources("storage_core", "connector")
    assert len(rooms) > 10, "the house is empty: the paths of this test are wrong"
    assert [line for path in rooms for line in disk_touches(module_of(path), path.read_text())] == []


def schemes_named(source: str) -> list[str]:
    """URI schemes that appear in a module's code, docstrings excluded."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    schemes = ("s3", "gs", "abfs", "az", "hdfs", "viewfs")
    return [
        f"line {text.lineno}: {text.value[:20]!r}"
        for text in texts
        if id(text) not in docstrings and any(text.value.lower().startswith(f"{scheme}://") for scheme in schemes)
    ]


def test_no_engine_format_or_connector_knows_a_scheme() -> None:
    folders = ("rocketmq", "rabbitmq", "formats", "options", "stream")
    rooms = [path for folder in folders for path in (ROOT / "storage_core" / folder).rglob("*.py")]
    rooms += sources("connector")
    assert len(rooms) > 100
    assert {str(path): found for path in rooms if (found := schemes_named(path.read_text()))} == {}
    walled = ("storage_core.files.remote", "storage_core.files.address")
    names = {name for path in rooms for name in imports(ast.parse(path.read_text()))}
    assert [name for name in names if any(under(name, wall) for wall in walled)] == []
    assert schemes_named("x = 's3://bucket'") != []


@pytest.mark.parametrize("path", sources(*EVERYTHING), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short_and_well_named(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    assert not FORBIDDEN_NAMES & set(path.stem.split("_")), "a file is a noun of its own"
    if path.relative_to(ROOT).parts[0] in PRODUCT:
        assert long_functions(text) == []
        assert ast.get_docstring(ast.parse(text)), "its first sentence says what the module is"
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text))), "assert says nothing here"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("storage_core.formats.spans", "import os"),
        ("storage_core.formats.spans", "from threading import Lock"),
        ("storage_core.formats.spans", "import storage_core.files.system"),
        ("storage_core.formats.rocketmq.message", "from storage_core.formats.rabbitmq import journal"),
        ("storage_core.files.window", "from storage_core.formats.layout import struct"),
        ("storage_core.files.window", "from storage_core import rocketmq"),
        ("storage_core.rocketmq.read.snapshot", "from storage_core.rabbitmq.queue.queue import Queue"),
        ("storage_core.rocketmq.read.snapshot", "import connector.schema"),
        ("storage_core.rocketmq.read.snapshot", "def late():\n    import pyspark.sql"),
        ("storage_core.store", "from storage_core.rocketmq.read.snapshot import Snapshot"),
        ("connector.datasource", "from storage_core.rocketmq.read.snapshot import Snapshot"),
        ("connector.datasource", "from storage_core import files"),
        ("connector.datasource", "import storage_core\nstorage_core.files.system.names('x')"),
        ("storage_core.rocketmq.read.snapshot", "import storage_core\nstorage_core.open_store('x')"),
        ("connector.datasource", "import command_line.main"),
        ("command_line.main", "import connector.datasource"),
        ("pyspark_mqstore", "from storage_core import open_store"),
        ("mqstore", "from connector.read import read"),
        ("mqstore", "from storage_core.store import Snapshot"),
    ],
)
def test_the_walls_would_notice(module: str, source: str) -> None:
    assert wall_breaks(module, source) != []


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "import os\nos.open('x', 0)",
        "import os\nos.path.exists('x')",
        "import os\nos.listdir('x')",
        "from os import stat",
        "from os.path import getsize",
        "from pathlib import Path",
        "import io\nio.open('x')",
        "import mmap",
        "import numpy as np\nnp.memmap('x')",
        "import numpy as np\nnp.fromfile('x')",
        "import pyarrow as pa\npa.memory_map('x')",
    ],
)
def test_the_door_would_notice(source: str) -> None:
    assert disk_touches("storage_core.rocketmq.read.snapshot", source) != []


def test_what_is_allowed_stays_allowed() -> None:
    assert wall_breaks("connector.planning", "from storage_core import open_store, find_stores\nimport pyspark") == []
    assert wall_breaks("storage_core.rocketmq.views.views", "from storage_core.files import system") == []
    assert disk_touches("storage_core.files.window", "import os.path\nos.path.join('a', 'b')\nos.cpu_count()") == []
    assert disk_touches(SYSTEM, "import os\nos.open('x', 0)") == []
    assert long_functions("def f():\n" + "    x = 1\n" * LONGEST_FUNCTION) != []
