"""The pages in docs/format/ show the layouts that the code uses, and bytes from files of the real systems."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage_core.formats.rocketmq.indexfile import key_hash
from tools import format_pages
from tools.dumps import rabbitmq, rocketmq
from tools.dumps.dump import GOLDEN, Dump, golden

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.name: path.read_text() for path in sorted(format_pages.FOLDER.glob("*.md"))}
LAYOUTS = format_pages.layouts()


def test_there_is_a_page_for_each_system() -> None:
    assert list(PAGES) == ["rabbitmq-quorum.md", "rabbitmq-streams.md", "rabbitmq.md", "rocketmq.md"]


@pytest.mark.parametrize("name", PAGES)
def test_what_is_between_the_marks_is_what_code_and_golden_files_say(name: str) -> None:
    assert PAGES[name] == format_pages.page(PAGES[name]), "run `make pages`"


@pytest.mark.parametrize("name", PAGES)
def test_every_mark_is_closed(name: str) -> None:
    text = PAGES[name]
    opened = re.findall(r"<!-- (?!end)", text)
    assert (
        len(opened)
        == text.count("<!-- end -->")
        == sum(len(format_pages.marks(text, kind)) for kind in format_pages.FILL)
    )


def test_every_layout_is_on_the_page_of_its_system() -> None:
    declared = sum(
        len(re.findall(r"^[A-Z_0-9]+(?:: [\w.]+)? = struct\($", path.read_text(), re.MULTILINE))
        for path in (ROOT / "storage_core" / "formats").rglob("*.py")
    )
    assert len(LAYOUTS) == declared > 0
    left = LAYOUTS
    for name in sorted(PAGES, key=len, reverse=True):
        prefix = name.removesuffix(".md").replace("-streams", ".stream_queues").replace("-", ".") + "."
        assert sorted(format_pages.marks(PAGES[name], "table")) == [each for each in left if each.startswith(prefix)]
        left = [each for each in left if not each.startswith(prefix)]
    assert left == []


def test_every_dump_is_shown_once() -> None:
    shown = [name for text in PAGES.values() for name in format_pages.marks(text, "hexdump")]
    assert sorted(shown) == sorted(format_pages.DUMPS)


@pytest.mark.parametrize("name", format_pages.DUMPS)
def test_a_dump_is_its_file_without_holes(name: str) -> None:
    dump = format_pages.DUMPS[name]()
    content, position = dump.content, dump.start
    for line in dump.lines:
        assert line.position == position
        assert content[position : position + len(line.raw)] == line.raw
        position += len(line.raw)
        if not line.field:
            skipped = re.match(r"… ([\d,]+) bytes", line.value)
            assert skipped is not None
            position += int(skipped[1].replace(",", ""))
    assert position == dump.position <= len(content)


@pytest.mark.parametrize("name", format_pages.DUMPS)
def test_the_file_of_a_dump_is_golden(name: str) -> None:
    archive, _, member = format_pages.DUMPS[name]().source.removeprefix("tests/golden/").partition(": ")
    assert (GOLDEN / archive).is_file()
    assert golden(f"{archive}!{member}" if member else archive) == format_pages.DUMPS[name]().content


def test_a_changed_byte_changes_a_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rocketmq.queue_entries().text()

    def changed(path: str, position: int = 0) -> Dump:
        content = bytearray(golden(path))
        content[7] ^= 1
        return Dump(path, bytes(content), position)

    monkeypatch.setattr(rocketmq, "opened", changed)
    assert rocketmq.queue_entries().text() != before
    monkeypatch.setattr(rabbitmq, "opened", lambda path: Dump(path, golden(path)[:20]))
    with pytest.raises(ValueError, match="the file ends"):
        rabbitmq.journal_file()


def test_a_page_with_another_field_does_not_pass() -> None:
    text = PAGES["rocketmq.md"]
    assert format_pages.page(text.replace("`tags_code` |", "`tags` |", 1)) == text


def test_the_first_index_entry_is_the_key_that_the_page_says() -> None:
    example = re.search(r'key_hash\("(\w+)", "(\w+)"\) = ([\d,]+)', PAGES["rocketmq.md"])
    assert example is not None
    assert key_hash(example[1], example[2]) == int(example[3].replace(",", ""))
    assert f"key_hash = {key_hash(example[1], example[2])} (entry 1;" in PAGES["rocketmq.md"]


@pytest.mark.parametrize("name", PAGES)
def test_every_row_of_a_layout_has_its_five_cells(name: str) -> None:
    blocks = re.findall(r"<!-- table: .+? -->(.*?)<!-- end -->", PAGES[name], re.DOTALL)
    rows = [line for block in blocks for line in block.splitlines() if line.startswith("|")]
    assert rows
    assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != 6] == []
