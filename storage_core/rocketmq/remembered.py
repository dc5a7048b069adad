"""What this process remembers of stores it has judged: a log is walked once, and later questions look at its end."""

from __future__ import annotations

from collections import OrderedDict

from storage_core.files.window import OpenFiles, Window
from storage_core.rocketmq.listing import Listing, Signature
from storage_core.rocketmq.recovery import Rules, Verdict, judge

MOST_STORES = 64
END_SIZE = 8

_verdicts: OrderedDict[tuple[str, str, Rules | None], tuple[Signature, bytes, Verdict]] = OrderedDict()


def remembered_verdict(listing: Listing, rules: Rules | None) -> Verdict:
    """The verdict on a listing.

    A broker writes through a map, which moves neither size nor time of a file, so the bytes at the known end are
    looked at as well: they change with the next record.
    """
    log_folder = listing.log.files[0].path if listing.log.files else ""
    key = (listing.root, log_folder, rules)
    known = _verdicts.get(key)
    if known is not None and known[0] == listing.signature and known[1] == _end_bytes(listing, known[2]):
        _verdicts.move_to_end(key)
        return known[2]
    verdict = judge(listing, rules)
    _verdicts[key] = (listing.signature, _end_bytes(listing, verdict), verdict)
    while len(_verdicts) > MOST_STORES:
        _verdicts.popitem(last=False)
    return verdict


def _end_bytes(listing: Listing, verdict: Verdict) -> bytes:
    """The bytes where the next record would begin."""
    file = listing.log.file_at(verdict.log_end)
    if file is None:
        return b""
    with OpenFiles() as files:
        stop = min(verdict.log_end + END_SIZE, file.end)
        return Window(listing.log, files).load(verdict.log_end, stop).tobytes()
