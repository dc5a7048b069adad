"""A tour in two minutes: the disk of a small shop's dead broker, read as a Spark table, and a new store written.

Run it with `make demo`. It unpacks a store that a real RocketMQ 4.9.3 broker left behind, and starts no broker.
"""

from __future__ import annotations

import shutil
import tarfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "demo-output"
ARCHIVE = HERE / "data" / "shop-4.9.3.tar.gz"

console = Console(width=120, highlight=False)


def main() -> None:
    """Runs the tour."""
    began = time.perf_counter()
    store = unpack()
    spark = session()
    the_table(spark, store)
    messages_by_hour(spark, store)
    history_of_one_order(spark, store)
    who_is_behind(spark, store)
    a_new_store(spark, store)
    what_next(time.perf_counter() - began, store)
    spark.stop()


def chapter(title: str, *code: str) -> None:
    """A headline, and the code that answers it."""
    console.print()
    console.rule(f"[bold]{title}", align="left")
    for line in code:
        console.print(f"[cyan]    {escape(line)}")
    console.print()


def show(frame: DataFrame, limit: int = 20) -> None:
    """Prints a small DataFrame."""
    table = Table(box=None, header_style="bold", pad_edge=True)
    for name in frame.columns:
        table.add_column(name, no_wrap=True)
    for row in frame.limit(limit).collect():
        table.add_row(*(escape(_text(value)) for value in row))
    console.print(table)


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}"
    return "" if value is None else str(value)


def unpack() -> str:
    """The store directory; its archive keeps the holes of the broker's preallocated files."""
    chapter("A broker died. This is what its disk holds.")
    OUTPUT.mkdir(exist_ok=True)
    target = OUTPUT / "shop"
    if not target.exists():
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(target, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    store = target / "store"
    show_files(store)
    return str(store)


def show_files(store: Path) -> None:
    """What lies in a store directory."""
    for path in sorted(path for path in store.iterdir() if not path.name.startswith(".")):
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        size = sum(p.stat().st_size for p in files)
        console.print(
            f"    {path.name + ('/' if path.is_dir() else ''):<16}{len(files):>4} files {size / 1e6:>8.1f} MB"
        )


def session() -> SparkSession:
    """A local Spark that finds mqstore by its installed name."""
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


def the_table(spark: SparkSession, store: str) -> None:
    """The messages as rows."""
    chapter("It is a table.", f'df = spark.read.format("mqstore").load("{Path(store).name}")')
    frame = spark.read.format("mqstore").option("topic", "orders").load(store)
    show(frame.select("topic", "queueId", "queueOffset", "key", "tags", "storeTimestamp"), 5)
    count = spark.read.format("mqstore").option("columns", "topic").load(store).count()
    console.print(f"\n    {count:,} messages, with {len(frame.columns)} columns:")
    console.print(Padding(", ".join(frame.columns), (0, 4)))


def messages_by_hour(spark: SparkSession, store: str) -> None:
    """Messages by topic and hour, as a table and as a picture."""
    chapter(
        "What happened, and when?",
        'df.groupBy("topic", F.date_trunc("hour", "storeTimestamp").alias("hour")).count()',
    )
    from pyspark.sql import functions

    frame = spark.read.format("mqstore").option("columns", "topic,storeTimestamp").load(store)
    hour = functions.date_trunc("hour", "storeTimestamp").alias("hour")
    second = functions.date_trunc("second", "storeTimestamp").alias("second")
    counts = frame.groupBy("topic", hour, second).count().toPandas()
    picture = OUTPUT / "messages-by-topic-and-hour.png"
    plot(counts, picture)
    totals = counts.groupby(["topic", "hour"])["count"].sum().reset_index().sort_values("count", ascending=False)
    for topic, at, number in totals.itertuples(index=False):
        bar = "█" * max(1, int(40 * number / totals["count"].max()))
        console.print(f"    {escape(topic):<22}{at:%Y-%m-%d %H:00}  {number:>6,}  [green]{bar}")
    console.print(f"\n    The same as a picture: [bold]{picture.relative_to(OUTPUT.parent)}")


def plot(counts: object, picture: Path) -> None:
    """Bars by hour, and inside of them lines by second; the shop's broker lived for a few seconds only."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(1, 1.6))
    by_hour = counts.pivot_table(index="hour", columns="topic", values="count", aggfunc="sum")  # type: ignore[attr-defined]
    by_hour.index = by_hour.index.strftime("%H:00")
    by_hour.plot.bar(ax=left, legend=False, rot=0, xlabel="hour (UTC)", title="messages by topic and hour")
    by_second = counts.pivot_table(index="second", columns="topic", values="count", aggfunc="sum").fillna(0)  # type: ignore[attr-defined]
    by_second.index = by_second.index.strftime("%H:%M:%S")
    by_second.plot(ax=right, marker="o", xlabel="store time (UTC)", title="the same, second by second")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def history_of_one_order(spark: SparkSession, store: str) -> None:
    """One order over three topics."""
    order = "order-000368"
    chapter(
        f"What became of {order}?",
        f'df.where("array_contains(keys, \'{order}\')").orderBy("storeTimestamp")',
    )
    frame = spark.read.format("mqstore").option("topic", "orders,payments,shipments").load(store)
    history = frame.where(f"array_contains(keys, '{order}')").orderBy("storeTimestamp", "physicalOffset")
    show(history.selectExpr("storeTimestamp", "topic", "tags", "properties['city'] as city", "body"))


def who_is_behind(spark: SparkSession, store: str) -> None:
    """Consumer lag, out of the broker's own offsets."""
    chapter("Who is behind?", 'spark.read.format("mqstore").option("view", "offsets").load(store)')
    offsets = spark.read.format("mqstore").option("view", "offsets").load(store)
    lag = offsets.groupBy("group", "topic").sum("committed", "maxOffset", "lag")
    show(lag.toDF("group", "topic", "committed", "end", "lag").where("lag > 0").orderBy("lag", ascending=False))


def a_new_store(spark: SparkSession, store: str) -> None:
    """The payments that customers have to be told of, as a store that a stock broker boots from."""
    chapter(
        "Write: a DataFrame becomes a store that a stock broker boots from.",
        'mails = df.where("topic = \'payments\'").selectExpr("\'mails\' as topic", "key", "tags", "body")',
        'mails.write.format("mqstore").mode("append").save("mails")',
    )
    target = OUTPUT / "mails"
    shutil.rmtree(target, ignore_errors=True)
    payments = spark.read.format("mqstore").option("topic", "payments").load(store)
    mails = payments.selectExpr("'mails' as topic", "key", "tags", "body")
    mails.write.format("mqstore").mode("append").save(str(target))
    show_files(target)
    asked, written = payments.count(), spark.read.format("mqstore").option("columns", "topic").load(str(target)).count()
    if asked != written:
        raise RuntimeError(f"{asked} payments became {written} mails")
    console.print(f"\n    {written:,} messages of {asked:,} payments are in it. One of them, through its own index:\n")
    key = mails.selectExpr("min(key) as key").collect()[0].key.split()[0]
    console.print(f'[cyan]    spark.read.format("mqstore").option("key", "{key}").load("mails")\n')
    found = spark.read.format("mqstore").option("key", key).load(str(target))
    if not found.count():
        raise RuntimeError(f"{key} is not found")
    show(found.select("topic", "queueId", "key", "tags", "body"))


def what_next(seconds: float, store: str) -> None:
    """Where to go from here."""
    chapter(f"That took {seconds:.0f} seconds, and the broker's store is as it was. What next?")
    console.print('[cyan]    read = spark.read.format("mqstore")\n')
    for text, code in (
        ("the last ten messages of each queue", 'read.option("startingOffsets", "last:10").load(store)'),
        ("what the group shipping has not seen yet", 'read.option("startingOffsets", "group:shipping").load(store)'),
        ("a Kafka job on a RocketMQ disk", 'read.option("layout", "kafka").load(store)'),
        ("every intact record, whatever the queues say", 'read.option("scan", "log").load(store)'),
        ("your own broker's disk", 'read.load("/path/to/store")'),
    ):
        console.print(f"    {text:<46} [cyan]{escape(code)}")
    console.print(
        f"\n    The store: {Path(store).relative_to(OUTPUT.parent)}. All options: docs/options.md. Tests: make test.\n"
    )


if __name__ == "__main__":
    main()
