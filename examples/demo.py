"""A two-minute tour: reads the disk of a small shop's dead broker as a Spark table, and writes a new store.

Run it with `make demo`. It unpacks a store that a real RocketMQ 4.9.3 broker wrote, and starts no broker. The code that
it prints is the code that it runs: each step is a function, and its source is shown before its result.
"""

from __future__ import annotations

import inspect
import shutil
import tarfile
import textwrap
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)
from rich.console import Console
from rich.markup import escape

import mqstore

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "demo-output"
ARCHIVE = HERE / "data" / "shop-4.9.3.tar.gz"
STEPS = "▁▂▃▄▅▆▇█"

console = Console(width=100, highlight=False)


def main() -> None:
    """Runs the tour."""
    began = time.perf_counter()
    store = unpack()
    with console.status("Spark is starting …"):
        spark = session()
    show(step("It is a table.", a_table, spark, store))
    over_time(step("What happened, and when?", what_happened, spark, store))
    show(step("What became of one order?", one_order, spark, store))
    show(step("Which consumers lag?", lag, spark, store))
    new = OUTPUT / "mails"
    shutil.rmtree(new, ignore_errors=True)
    step("Write: a DataFrame becomes a store that a stock broker boots from.", write, spark, store, str(new))
    show_files(new)
    show(step("And one of its messages, found through the new store's own index.", find, spark, str(new)))
    what_next(time.perf_counter() - began)
    spark.stop()


def a_table(spark: SparkSession, store: str) -> DataFrame:
    """The messages of a topic as rows."""
    orders = spark.read.format("mqstore").option("topic", "orders").load(store)
    return orders.select("queueId", "queueOffset", "storeTimestamp", "tags", "key").limit(5)


def what_happened(spark: SparkSession, store: str) -> DataFrame:
    """Messages per topic and tenth of a second: the shop's broker ran for a few seconds only."""
    df = spark.read.format("mqstore").option("columns", "topic,storeTimestamp").load(store)
    return df.groupBy("topic", F.window("storeTimestamp", "100 milliseconds").start.alias("time")).count()


def one_order(spark: SparkSession, store: str) -> DataFrame:
    """One order over three topics, found through the broker's index files."""
    found = spark.read.format("mqstore").option("key", "order-000368").load(store)
    return found.selectExpr(
        "storeTimestamp", "topic", "tags", "properties['city'] as city", "body"
    ).orderBy("storeTimestamp", "physicalOffset")  # fmt: skip


def lag(spark: SparkSession, store: str) -> DataFrame:
    """Consumer lag, from the broker's own offsets."""
    offsets = spark.read.format("mqstore").option("view", "offsets").load(store)
    sums = offsets.groupBy("group", "topic").agg(F.sum("committed"), F.sum("maxOffset"), F.sum("lag"))
    return sums.toDF("group", "topic", "committed", "end", "lag").where("lag > 0").orderBy(F.desc("lag"))


def write(spark: SparkSession, store: str, new: str) -> None:
    """The payments that customers are notified of, as a store of their own."""
    payments = spark.read.format("mqstore").option("topic", "payments").load(store)
    mails = payments.selectExpr("'mails' as topic", "key", "tags", "body")
    mails.write.format("mqstore").mode("append").save(new)


def find(spark: SparkSession, new: str) -> DataFrame:
    """A message of the new store."""
    mails = spark.read.format("mqstore").option("key", "order-000368").load(new)
    return mails.select("topic", "queueId", "queueOffset", "tags", "body")


def step(title: str, work: Callable[..., Any], *given: object) -> Any:
    """Prints a headline and the code of `work`, runs it, and returns its result; a DataFrame becomes pandas' own."""
    headline(title)
    for line in code_of(work):
        console.print(f"    [cyan]{escape(line)}", soft_wrap=True)
    console.print()
    with console.status("Spark is at work …"):
        result = work(*given)
        return None if result is None else result.toPandas()


def code_of(work: Callable[..., Any]) -> list[str]:
    """The lines of a function below its docstring, without `return` and ruff's markers."""
    lines = inspect.getsource(work).splitlines()
    start = next(number for number, line in enumerate(lines) if line.strip().startswith('"""')) + 1
    body = textwrap.dedent("\n".join(lines[start:])).replace("  # fmt: skip", "")
    return [line.removeprefix("return ") for line in body.splitlines()]


def headline(title: str) -> None:
    """Prints a headline across the screen."""
    console.print()
    console.rule(f"[bold]{title}", align="left")
    console.print()


def show(rows: pd.DataFrame) -> None:
    """Prints rows; only the last column may be cut."""
    texts = [list(rows.columns), *([_text(value) for value in row] for row in rows.itertuples(index=False))]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    widths[-1] = min(widths[-1], console.width - sum(widths[:-1]) - 2 * len(widths) - 4)
    numbers = [all(text.replace(",", "").isdigit() for text in column[1:]) for column in zip(*texts, strict=True)]
    for number, row in enumerate(texts):
        cells = [
            text if len(text) <= width else f"{text[: width - 1]}…" for text, width in zip(row, widths, strict=True)
        ]
        line = "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numbers, strict=True)
        )
        console.print(f"    {escape(line.rstrip())}", style=None if number else "bold")


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}"
    if isinstance(value, str):
        return value
    return "" if value is None else f"{value:,}"


def unpack() -> str:
    """Unpacks the store and returns its directory; the archive keeps the holes of the broker's preallocated files."""
    headline("A broker died. This is what its disk holds.")
    OUTPUT.mkdir(exist_ok=True)
    target = OUTPUT / "shop"
    if not target.exists():
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(target, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    show_files(target / "store")
    return str(target / "store")


def show_files(store: Path) -> None:
    """Prints the contents of a store directory, with sizes on disk: preallocated files are mostly holes."""
    for path in sorted(path for path in store.iterdir() if not path.name.startswith(".")):
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        size = sum(p.stat().st_blocks * 512 for p in files)
        name = path.name + ("/" if path.is_dir() else "")
        console.print(f"    {name:<16}{len(files):>4} {'file ' if len(files) == 1 else 'files'}{size / 1e6:>8.1f} MB")


def session() -> SparkSession:
    """A local Spark that finds mqstore by its installed name."""
    mqstore.ensure_java()
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("mqstore demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def over_time(counts: pd.DataFrame) -> None:
    """Prints a line for each topic in the terminal, and draws a picture."""
    table = counts.pivot_table(index="time", columns="topic", values="count", aggfunc="sum")
    table = table.resample("100ms").sum()
    order = table.sum().sort_values(ascending=False)
    highest = table.to_numpy().max()
    console.print(f"    {'topic':<22}{'messages':>8}   {table.index[0]:%H:%M:%S} to {table.index[-1]:%H:%M:%S} UTC")
    for topic, total in order.items():
        # A block of varying height for each two tenths of a second; the smallest for one message, a blank for none.
        heights = table[topic].to_numpy()
        pairs = [heights[at : at + 2].max() for at in range(0, len(heights), 2)]
        line = "".join(STEPS[round(7 * each / highest)] if each else " " for each in pairs)
        console.print(f"    {escape(str(topic)):<22}{total:>8,.0f}   [green]{line}")
    picture = OUTPUT / "messages-over-time.png"
    with console.status("A picture is drawn …"):
        plot(table[[topic for topic in order.index if not str(topic).startswith(("%", "SCHEDULE"))]], picture)
    console.print(f"\n    The same as a picture: [bold]{picture.relative_to(OUTPUT.parent)}")


def plot(table: pd.DataFrame, picture: Path) -> None:
    """Draws one panel per topic, on one true time axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.dates import DateFormatter, SecondLocator

    table = table.loc[table.sum(axis=1) > 0]
    figure, panels = plt.subplots(len(table.columns), 1, figsize=(9, 4.6), sharex=True, sharey=True)
    for axes, topic, color in zip(panels, table.columns, ("#3267d6", "#d9632b", "#1d9a6c"), strict=False):
        axes.bar(table.index, table[topic], width=timedelta(seconds=0.1), align="edge", color=color)
        axes.set_title(f"{topic}: {table[topic].sum():,.0f} messages", loc="left", fontsize=10)
        axes.set_ylabel("per 0.1 s", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
    panels[-1].xaxis.set_major_locator(SecondLocator())
    panels[-1].xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    panels[-1].set_xlabel(f"Store time on {table.index[0]:%d %B %Y} (UTC)")
    figure.suptitle("What a dead broker's disk says about its last seconds", x=0.07, ha="left", fontweight="bold")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def what_next(seconds: float) -> None:
    """Prints what to try next."""
    headline(f"That took {seconds:.0f} seconds, and the broker's store is as it was. What next?")
    for text, code in (
        ("the last ten messages of each queue", '.option("startingOffsets", "last:10")'),
        ("what the group shipping has not read", '.option("startingOffsets", "group:shipping")'),
        ("a Kafka job on a RocketMQ disk", '.option("layout", "kafka")'),
        ("every intact record, whatever the queues say", '.option("scan", "log")'),
    ):
        console.print(f"    {text:<46}[cyan]{escape(code)}")
    store = (OUTPUT / "shop" / "store").relative_to(OUTPUT.parent)
    console.print(f"\n    Each is an option of a read of {store}, or of your own broker's disk.")
    console.print(f"    In a shell, without Spark: mqstore ls {store}. All options: docs/options.md.\n")


if __name__ == "__main__":
    main()
