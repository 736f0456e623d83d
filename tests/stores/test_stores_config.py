"""`config.json` through the run store."""

import json
import shutil
from pathlib import Path

import pytest

from runstore import MalformedFileError, NotFoundError, TrainingRunStore, UnstorableValueError
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio


async def test_the_same_object_comes_back(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """After the first successful read the same object comes back, whatever the file holds by then."""
    run.put("config.json", b'{"lr": 0.1}')
    first = await call(store.aread_config)
    assert first == {"lr": 0.1}
    run.put("config.json", b'{"lr": 0.2}')
    assert await call(store.aread_config) is first


async def test_a_missing_config_is_none_and_not_kept(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """No file is `None`; a file that comes later is seen."""
    assert await call(store.aread_config) is None
    run.put("config.json", b'{"lr": 0.1}')
    assert await call(store.aread_config) == {"lr": 0.1}


async def test_an_empty_object_is_a_config_and_kept(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """`{}` is a configuration like any other: read once, the same object comes back."""
    run.put("config.json", b"{}")
    first = await call(store.aread_config)
    assert first == {}
    assert await call(store.aread_config) is first


async def test_what_was_written_is_read_in_its_json_form(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """After a write the JSON form comes back (tuples as lists, keys as strings), here and elsewhere."""
    config = {"betas": (0.9, 0.95), "layers": {1: "a"}, "path": Path("/data"), "none": None}
    expected = {"betas": [0.9, 0.95], "layers": {"1": "a"}, "path": "/data", "none": None}
    await call(store.awrite_config, config)
    read = await call(store.aread_config)
    assert read == expected
    assert await call(store.aread_config) is read
    assert await call(TrainingRunStore(run).aread_config) == expected
    assert config["betas"] == (0.9, 0.95)


async def test_a_write_replaces_the_file_and_what_was_kept(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """The second configuration is the whole file, indented by 2, and what this store reads."""
    await call(store.awrite_config, {"lr": 0.1, "old": True})
    await call(store.aread_config)
    await call(store.awrite_config, {"lr": 0.2})
    assert run.get("config.json") == b'{\n  "lr": 0.2\n}'
    assert await call(store.aread_config) == {"lr": 0.2}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b" \n", "is empty", id="blank"),
        pytest.param(b'{"lr": 0.1', "is not valid JSON", id="cut off"),
        pytest.param(b"[1, 2]", "holds a JSON list", id="list"),
        pytest.param(b"null", "holds a JSON NoneType", id="null"),
        pytest.param('{"lr": 0.1}'.encode("utf-16"), "UTF-16", id="utf-16"),
        pytest.param(b'{"name": "caf\xe9"}', "is not UTF-8 text", id="latin-1"),
        pytest.param(b'{"a":' * 100_000, "nested too deeply", id="deep"),
    ],
)
async def test_a_malformed_config_names_its_url(
    run: RunFolder, store: TrainingRunStore, call: Call, data: bytes, reason: str
) -> None:
    """A file that is no JSON object raises `MalformedFileError` with its URL and why; it is not kept."""
    run.put("config.json", data)
    for _ in range(2):
        with pytest.raises(MalformedFileError, match=reason) as caught:
            await call(store.aread_config)
        assert store.url("config.json") in str(caught.value)
    run.put("config.json", b'{"lr": 0.1}')
    assert await call(store.aread_config) == {"lr": 0.1}


async def test_a_byte_order_mark_is_no_part_of_a_config(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """An editor's UTF-8 mark at the start is invisible."""
    run.put("config.json", b'\xef\xbb\xbf{"lr": 0.1}')
    assert await call(store.aread_config) == {"lr": 0.1}


async def test_integers_of_a_config_are_exact(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Integers beyond 64 bits are written and read back as they are."""
    config = {"seed": 2**64, "low": -(2**63) - 1, "long": 10**30}
    await call(store.awrite_config, config)
    assert json.loads(run.get("config.json")) == config
    assert await call(TrainingRunStore(run).aread_config) == config


@pytest.mark.parametrize("config", [[1, 2], "text", 5, None])
async def test_what_makes_no_object_is_refused(
    run: RunFolder, store: TrainingRunStore, call: Call, config: object
) -> None:
    """A configuration that is no object raises a `TypeError`, and the file stays as it was."""
    await call(store.awrite_config, {"lr": 0.1})
    with pytest.raises(UnstorableValueError, match="must make a JSON object"):
        await call(store.awrite_config, config)
    assert run.get("config.json") == b'{\n  "lr": 0.1\n}'
    assert await call(store.aread_config) == {"lr": 0.1}


async def test_a_cycle_is_reported_and_nothing_is_written(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """A value that holds itself raises with its key path, and no file comes into being."""
    config: dict[str, object] = {"model": {}}
    config["model"] = {"parent": config}
    with pytest.raises(UnstorableValueError, match=r"\['model'\]\['parent'\] holds itself"):
        await call(store.awrite_config, config)
    assert not run.exists()


async def test_a_read_that_a_write_overtakes_keeps_nothing_old(
    run: RunFolder, store: TrainingRunStore
) -> None:
    """The configuration read before a write, and returned after it, is not what later reads give."""
    await store.awrite_config({"lr": 0.1})
    reading = TrainingRunStore(run)
    inner = reading.storage.aread

    async def overtaken(path: str) -> bytes:
        data = await inner(path)
        await reading.awrite_config({"lr": 0.2})
        return data

    reading.storage.aread = overtaken  # type: ignore[method-assign]
    assert await reading.aread_config() == {"lr": 0.1}
    assert await reading.aread_config() == {"lr": 0.2}


async def test_of_writes_that_overlap_the_file_is_believed(run: RunFolder, store: TrainingRunStore) -> None:
    """When two writes overlap, later reads give what is in the file, not what finished last here."""
    inner = store.storage.awrite

    async def overtaken(path: str, data: bytes) -> None:
        await inner(path, data)
        if b"first" in data:
            await store.awrite_config({"name": "second"})

    store.storage.awrite = overtaken  # type: ignore[method-assign]
    await store.awrite_config({"name": "first"})
    assert json.loads(run.get("config.json")) == {"name": "second"}
    assert await store.aread_config() == {"name": "second"}


async def test_a_config_that_may_not_be_read_is_no_missing_one(
    run: RunFolder, store: TrainingRunStore
) -> None:
    """A folder in the file's place is missing; a loop of links is an error of its own."""
    path = run.put("config.json/inside", b"").parent
    assert await store.aread_config() is None
    shutil.rmtree(path)
    path.symlink_to(path)
    with pytest.raises(OSError, match=r"config\.json") as caught:
        await store.aread_config()
    assert not isinstance(caught.value, NotFoundError)
