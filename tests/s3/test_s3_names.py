"""URIs and keys: literal both ways, whatever characters they hold."""

from pathlib import Path, PosixPath

import pytest

from runstore import InvalidInputError, S3Storage, TrainingRunStore, storage_from_uri
from tests.s3.place import Place
from tests.s3.proxy import FaultProxy
from tests.s3.server import S3Server

MIB = 1024 * 1024

# What each needs care with: quoting, fragments, queries, versions, joins, case, characters. Not a backslash,
# which this server takes for a slash.
NAMES = (
    "a%20b",
    "100%",
    "a#b",
    "a?b=c&d",
    "a?versionId=null",
    "two  spaces ",
    "plus+and=sign",
    "ünï/日本語/🚀",
    "UPPER and lower",
    "semi;colon:at@,'\"`",
    "s3:",
    "(a)[b]{c}*!~$^|<>",
)


@pytest.fixture
def place(s3_server: S3Server, s3_prefix: str, spool_folder: Path) -> Place:
    return Place(s3_server, s3_prefix, s3_server.endpoint, spool_folder)


@pytest.mark.parametrize("name", NAMES)
def test_b07_names_are_literal_both_ways(place: Place, name: str) -> None:
    """The key in the bucket is the name in the URI and in the path, written, appended, listed and opened."""
    folder = f"{place.uri}/{name}"
    storage = storage_from_uri(folder, **place.options())
    storage.write(name, b"written")
    storage.append_lines(f"{name}.jsonl", b'{"step": 1}\n')
    storage.flush()
    keys = [f"{place.prefix}/{name}/{name}", f"{place.prefix}/{name}/{name}.jsonl"]
    assert sorted(place.server.keys(place.prefix)) == sorted(keys)
    assert place.server.get(keys[0]) == b"written"
    assert storage.url(name) == f"{folder}/{name}"
    again = storage_from_uri(storage.url(), **place.options())
    assert again.read(name) == b"written"
    assert again.read_range(name, 1, 2) == b"ri"
    assert again.stat(name) == storage.stat(name)
    assert again.list_dir("") == sorted({name.split("/", maxsplit=1)[0], f"{name}.jsonl".split("/")[0]})
    assert sorted(again.find("")) == sorted([name, f"{name}.jsonl"])
    above = place.storage()
    assert above.list_dir("") == [name.split("/", maxsplit=1)[0]]
    assert above.read(f"{name}/{name}") == b"written"
    storage.remove(name)
    assert place.server.keys(place.prefix) == keys[1:]


def test_b07_a_large_object_of_any_name_is_appended_to(place: Place) -> None:
    """Above 5 MiB the server copies what is there, which names the key once more."""
    name = "a%20b#c?versionId=null&d ü+日本.jsonl"
    before = b'{"step": 0}\n' * (6 * MIB // 12)
    place.put(before, name)
    storage = place.storage()
    storage.append_lines(name, b'{"step": 1}\n')
    storage.flush()
    assert place.data(name) == before + b'{"step": 1}\n'


@pytest.mark.parametrize("form", ["s3://{}", "s3://{}/", "s3://{}//", "S3://{}", "s3a://{}", " s3://{}"])
def test_b07_forms_of_one_uri(place: Place, form: str) -> None:
    """Trailing slashes, the scheme in upper case or in Hadoop's form, a blank before it name the same run."""
    place.put(b'{"step": 7}\n')
    text = form.format(place.uri.removeprefix("s3://"))
    run = TrainingRunStore(storage_from_uri(text, **place.options()))
    assert run.url() == place.uri
    assert [row["step"] for row in run.read_metrics()] == [7]


def test_b07_a_prefix_is_a_folder(place: Place) -> None:
    """`run` does not see what is in `run2`, nor the object that has its very name."""
    for name in ("run", "run/a", "run2/b"):
        place.put(b"", name)
    storage = storage_from_uri(f"{place.uri}/run", **place.options())
    assert storage.list_dir("") == ["a"]
    assert storage.find("") == {"a": storage.stat("a")}
    assert storage.stat("") is None
    assert not storage.exists("")


@pytest.mark.parametrize("form", ["s3:/{}", "s3:{}", "path"])
def test_b07_a_uri_that_lost_a_slash_writes_nowhere(
    place: Place, proxy: FaultProxy, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collapsed forms, a `Path` of a URI too, are refused: no request, and no folder named `s3:`."""
    monkeypatch.chdir(tmp_path)
    rest = place.uri.removeprefix("s3://")
    uri = PosixPath(place.uri) if form == "path" else form.format(rest)
    options = place.options() | {"endpoint_url": proxy.endpoint}
    with pytest.raises(InvalidInputError, match="lost a slash"):
        storage_from_uri(uri, **options)
    with pytest.raises(InvalidInputError, match="lost a slash"):
        TrainingRunStore(uri)
    assert proxy.requests == []
    assert list(tmp_path.iterdir()) == []


def test_b07_the_root_of_a_bucket_is_a_root(place: Place) -> None:
    """`s3://bucket` itself holds everything."""
    place.put(b"1", "f")
    storage = storage_from_uri(f"s3://{place.server.bucket}", **place.options())
    assert isinstance(storage, S3Storage)
    assert storage.read(f"{place.prefix}/f") == b"1"
    assert storage.url("a") == f"s3://{place.server.bucket}/a"
    assert place.prefix.split("/")[0] in storage.list_dir("")
