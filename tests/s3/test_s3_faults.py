"""Servers that are busy, broken, gone or silent: what is tried again, for how long, and what is kept."""

import dataclasses
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runstore import S3Storage, TrainingRunStore, UnavailableError, UploadDelayedWarning
from runstore.remote import _s3_client
from tests.s3.place import METRICS, Place, until
from tests.s3.proxy import Fault, FaultProxy, Status
from tests.s3.server import S3Server

SLOW_DOWN = Status(503, "SlowDown", "Please reduce your request rate.")
# Each with how often it comes in a row. The HTTP client itself sends once more, at once, what was lost with a
# connection that it had used before.
FAULTS: dict[str, tuple[Fault, int]] = {
    "503": (SLOW_DOWN, 3),
    "429": (Status(429, "TooManyRequests"), 1),
    "500": (Status(500, "InternalError"), 1),
    "reset": ("reset", 3),
    "cut": ("cut", 1),
    "lost_reply": ("lost_reply", 3),
}
DATA = bytes(range(256)) * 4000


@dataclasses.dataclass(frozen=True)
class Operation:
    """What is called, the request that it makes, and what comes of it."""

    call: Callable[[S3Storage], object]
    request: str
    result: object


def appended(storage: S3Storage) -> None:
    storage.append("appended", b"new\n")
    storage.flush()


OPERATIONS = {
    "append": Operation(appended, "PutObject", None),
    "read_range": Operation(
        lambda storage: storage.read_range("there", 5, 999_999), "GetObject", DATA[5 : 999_999 + 5]
    ),
    "list": Operation(lambda storage: storage.list_dir(""), "ListObjectsV2", ["appended", "there"]),
    "stat": Operation(lambda storage: storage.exists("there"), "HeadObject", True),  # noqa: FBT003  a result
}


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, proxy: FaultProxy, spool_folder: Path) -> Place:
    place = Place(s3_server, s3_prefix, proxy.endpoint, spool_folder)
    place.put(DATA, "there")
    place.put(b"old\n", "appended")
    return place


def known(place: Place, proxy: FaultProxy) -> S3Storage:
    """A storage whose endpoint has answered before, and that knows the file that is appended to."""
    storage = place.storage()
    storage.append("appended", b"known\n")
    storage.flush()
    proxy.clear()
    return storage


def budget(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(_s3_client, "BUDGET_SECONDS", seconds)
    monkeypatch.setattr(_s3_client, "FIRST_BUDGET_SECONDS", seconds)


def pauses(proxy: FaultProxy, operation: str, key: str = "*") -> list[float]:
    """The seconds between the requests of an operation."""
    times = [each.time for each in proxy.requests if each.operation == operation]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


# ---- what passes


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_d10_what_passes_is_tried_again(place: Place, proxy: FaultProxy, fault: str, name: str) -> None:
    """Whatever it is, each call has its right result, and what was appended is there once."""
    storage, operation = known(place, proxy), OPERATIONS[name]
    kind, times = FAULTS[fault]
    rule = proxy.fail(kind, operation=operation.request, times=times)
    assert operation.call(storage) == operation.result
    assert place.data("appended") == b"old\nknown\n" + b"new\n" * (name == "append")
    assert place.spooled() == []
    if name == "append" and fault in {"cut", "lost_reply"}:
        assert rule.hits >= 1  # a HEAD found it in the object
    else:
        assert rule.hits == times
        assert proxy.count(operation.request) == times + 1


def test_d10_the_pauses_grow(place: Place, proxy: FaultProxy) -> None:
    """The more often a server says that it is busy, the longer it is left alone: twice as long each time."""
    storage = known(place, proxy)
    proxy.fail(SLOW_DOWN, times=5)
    assert storage.exists("there")
    for number, pause in enumerate(pauses(proxy, "HeadObject")):
        assert pause >= 0.05 * 2**number


def test_d10_the_server_says_when_to_come_again(place: Place, proxy: FaultProxy) -> None:
    """`Retry-After` counts where it is longer than the pause would be."""
    storage = known(place, proxy)
    proxy.fail(dataclasses.replace(SLOW_DOWN, headers=(("Retry-After", "0.7"),)), times=1)
    assert storage.read_range("there", 0, 1) == b"\0"
    assert pauses(proxy, "GetObject")[0] >= 0.7


def test_pauses_leave_the_seed_of_a_training_alone(place: Place, proxy: FaultProxy) -> None:
    """What `random` gives a seeded training is the same, whatever is tried again and wherever."""
    random.seed(5)
    expected = random.getstate()
    delayed = place.storage(flush_interval=0.05)
    delayed.append("delayed", b"1\n")
    storage = known(place, proxy)
    for operation in ("GetObject", "HeadObject", "PutObject"):
        proxy.fail(SLOW_DOWN, operation=operation, times=2)
    proxy.fail(Status(409, "ConditionalRequestConflict"), operation="PutObject", times=2)
    storage.append("appended", b"new\n")
    storage.flush()
    assert storage.read("there") == DATA
    until(lambda: place.data("delayed") == b"1\n", "the delivery in the background")
    assert storage.exists("there")
    assert proxy.count() > 8
    assert random.getstate() == expected


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPartCopy", "UploadPart"])
@pytest.mark.parametrize("fault", ["503", "reset", "lost_reply"])
def test_d10_a_part_of_a_large_upload_is_tried_again(
    place: Place, proxy: FaultProxy, operation: str, fault: str
) -> None:
    """Above 5 MiB each of its requests may fail for a while; the record is there once, no upload is left."""
    place.put(b"1" * (6 * 1024 * 1024) + b"\n", "large")
    proxy.fail(FAULTS[fault][0], operation=operation, times=1)
    storage = place.storage()
    storage.append_lines("large", b"2\n")
    storage.flush()
    data = place.data("large")
    assert data is not None
    assert data[-4:] == b"1\n2\n"
    assert len(data) == 6 * 1024 * 1024 + 3
    begun = 1 if (operation, fault) == ("CreateMultipartUpload", "lost_reply") else 0
    assert len(place.server.uploads(place.prefix)) == begun


# ---- what does not


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", ["503", "reset"])
def test_d10_after_the_budget_it_is_an_error(
    place: Place, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, fault: str, name: str
) -> None:
    """What stays as it is raises `UnavailableError` when the budget is spent; appends stay in the spool."""
    storage, operation = known(place, proxy), OPERATIONS[name]
    budget(monkeypatch, 0.3)
    proxy.fail(FAULTS[fault][0], operation=operation.request)
    begin = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        operation.call(storage)
    assert time.monotonic() - begin < 3
    assert proxy.count(operation.request) >= 2
    assert place.uri in str(caught.value)
    assert place.endpoint in str(caught.value)
    assert len(place.spooled()) == (name == "append")
    proxy.heal()
    storage.flush()
    assert place.data("appended") == b"old\nknown\n" + b"new\n" * (name == "append")
    assert place.spooled() == []


def test_d10_a_body_that_is_always_cut_is_an_error(
    place: Place, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a file never passes for the whole of it."""
    storage = known(place, proxy)
    budget(monkeypatch, 0.3)
    proxy.fail("cut", operation="GetObject")
    for offset, length in ((0, None), (3, 1000)):
        with pytest.raises(UnavailableError):
            storage.read_range("there", offset, length)
    proxy.heal()
    assert storage.read("there") == DATA


def test_d10_a_server_that_says_nothing_is_given_up(place: Place, proxy: FaultProxy) -> None:
    """One that takes the request and never answers counts as away, by default after 15 s."""
    storage = place.storage(config_kwargs={"read_timeout": 0.5})
    proxy.fail("hang")
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match="ReadTimeout"):
        storage.read("there")
    assert time.monotonic() - begin < 5
    proxy.heal()
    assert storage.read("there") == DATA


# ---- an outage


def train(run: TrainingRunStore, steps: Iterator[int], seconds: float) -> None:
    """A trainer that only appends; nothing may fail."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run.write_metrics({"loss": 0.5}, step=next(steps))
        time.sleep(0.01)


def warned_of(place: Place, warned: pytest.WarningsRecorder) -> dict[str, int]:
    """How many warnings there were for each file; all are of one kind and say where the appends wait."""
    found = Counter[str]()
    for warning in warned:
        text = str(warning.message)
        assert warning.category is UploadDelayedWarning
        assert f"wait in {place.spool}" in text
        assert f"No answer from {place.endpoint}" in text
        found[text.removeprefix(f"appends to {place.uri}/").partition(" ")[0]] += 1
    return dict(found)


@pytest.mark.filterwarnings("default")
def test_an_outage_in_the_middle_of_training(
    place: Place, proxy: FaultProxy, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No append fails; one warning a file; a checkpoint raises after the budget; then all arrives once."""
    budget(monkeypatch, 1.0)
    run = place.run(flush_interval=0.2)
    steps = itertools.count()
    train(run, steps, 0.3)
    run.write_checkpoint({"name": "before"})
    proxy.stop()
    train(run, steps, 0.5)
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match="No answer from"):
        run.write_checkpoint({"name": "during"})
    assert 0.5 < time.monotonic() - begin < 3.5
    train(run, steps, 1.5)
    until(lambda: len(recwarn) == 2, "no warning was given for each file")
    proxy.start()
    for seconds in (20, 5):  # what waited, and then as usual
        train(run, steps, 0.3)
        run.write_metrics({"loss": 0.5}, step=(done := next(steps)))
        until(lambda done=done: place.steps()[-1:] == [done], "not all has arrived", seconds)  # type: ignore[misc]
        assert place.steps() == list(range(done + 1))
    until(lambda: len(place.records("checkpoints.jsonl")) == 2, "the checkpoint has not arrived", 20)
    run.write_checkpoint({"name": "after"})
    names = [record["name"] for record in place.records("checkpoints.jsonl")]
    assert names == ["before", "during", "after"]
    assert warned_of(place, recwarn) == {METRICS: 1, "checkpoints.jsonl": 1}
    until(lambda: place.spooled() == [], "something stays in the spool")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("default")
def test_an_outage_of_30_s(place: Place, proxy: FaultProxy, recwarn: pytest.WarningsRecorder) -> None:
    """With the budgets as they are: one warning; a checkpoint in the last 15 s of it waits and is durable."""
    run = place.run(flush_interval=0.5)
    steps = itertools.count()
    train(run, steps, 0.5)
    run.storage.flush()
    proxy.stop()
    gone = time.monotonic()
    train(run, steps, 15)
    assert len(recwarn) == 0
    back = threading.Timer(gone + 30 - time.monotonic(), proxy.start)
    back.start()
    run.write_checkpoint({"name": "during"})
    back.join()
    assert time.monotonic() - gone >= 30
    assert place.records("checkpoints.jsonl") == [{"name": "during"}]
    train(run, steps, 0.5)
    done = next(steps)
    until(lambda: len(place.steps()) == done, "not all has arrived", 30)
    assert place.steps() == list(range(done))
    assert warned_of(place, recwarn) == {METRICS: 1}
