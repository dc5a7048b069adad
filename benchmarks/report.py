"""The findings: printed line by line, then written as `results.md` and drawn as `results.png`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One figure. `gate` is what it must reach, `goal` what it should: a minimum, or a maximum if `at_most`. `note`
    states it in other units.
    """

    title: str
    value: float
    unit: str
    gate: float | None = None
    at_most: bool = False
    note: str = ""
    goal: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the gate is reached; None if there is none."""
        if self.gate is None:
            return None
        return self.value <= self.gate if self.at_most else self.value >= self.gate

    @property
    def gate_text(self) -> str:
        """The gate as text."""
        return self._bound(self.gate)

    @property
    def goal_text(self) -> str:
        """The goal as text."""
        return self._bound(self.goal)

    def _bound(self, value: float | None) -> str:
        return "" if value is None else f"{'≤' if self.at_most else '≥'} {_figure(value, self.unit)}"

    @property
    def value_text(self) -> str:
        """The value as text."""
        return _figure(self.value, self.unit)

    @property
    def verdict(self) -> str:
        """Whether the gate is reached, as one word."""
        return {None: "", True: "yes", False: "**no**"}[self.reached]


@dataclass
class Section:
    """The findings of one question, and how they were measured."""

    title: str
    method: str
    findings: list[Finding] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Adds a finding and prints it."""
        goal = f", goal {finding.goal_text}" if finding.goal is not None else ""
        gate = (
            f"   (must be {finding.gate_text}: {finding.verdict.strip('*')}{goal})" if finding.gate is not None else ""
        )
        print(f"  {finding.title:<68} {finding.value_text:>10}{gate}  {finding.note}", flush=True)
        self.findings.append(finding)


def _figure(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value * 100:.0f} %"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{unit if unit == '×' else f' {unit}'}".strip()


def markdown(machine: Sequence[str], sections: Iterable[Section], how: str) -> str:
    """The text of results.md."""
    lines = ["# Benchmarks", "", how, "", *(f"* {line}" for line in machine), ""]
    lines += ["![ratios](results.png)", ""]
    for section in sections:
        lines += [f"## {section.title}", "", section.method]
        if section.foreign:
            lines += [f"Others used {max(section.foreign):.1f} cores meanwhile (the worst median of a comparison)."]
        lines += ["", "| | figure | must be | reached | goal | in other words |", "|---|---:|---:|:---:|---:|---|"]
        lines += [
            f"| {f.title} | {f.value_text} | {f.gate_text} | {f.verdict} | {f.goal_text} | {f.note} |"
            for f in section.findings
        ]
        lines.append("")
    return "\n".join(lines)


def draw(sections: Iterable[Section], path: Path) -> None:
    """Draws every figure that has a gate, as a share of it: bars that reach the line reach the gate."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    gated = [(f"{finding.title}: {finding.value_text}", finding) for each in sections for finding in each.findings]
    gated = [(label, finding) for label, finding in gated if finding.gate is not None]
    shares = [_share(finding) for _, finding in gated]
    figure: Any
    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.32 * len(gated)))
    colors = ["#2a7f62" if finding.reached else "#c0392b" for _, finding in gated]
    axes.barh(range(len(gated)), shares, color=colors)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(gated)), [label for label, _ in gated], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, min(max([*shares, 1.2]), 3) * 1.05)
    axes.set_xlabel("share of what it must be (cut at 3)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _share(finding: Finding) -> float:
    gate = finding.gate or 1.0
    share = gate / max(finding.value, 1e-9) if finding.at_most else finding.value / gate
    return min(share, 3.0)
