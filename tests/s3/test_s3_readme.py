"""What the README says of buckets: its code and commands, run on a real server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands
from tests.s3.server import REGION, S3Server
from tests.scripts import write_script
from tests.test_readme import README, blocks, commands_in, on_a_bucket, program

SLOW = re.compile(r"Executing <.*> took [0-9.]+ seconds")


@pytest.fixture
def text(s3_server: S3Server, s3_uri: str) -> str:
    """The README, of whose bucket and endpoint are those of the tests."""
    text = README.read_text()
    for of_readme, of_tests in (("s3://my-bucket", s3_uri), ("http://localhost:9000", s3_server.endpoint)):
        assert of_readme in text
        text = text.replace(of_readme, of_tests)
    return text


@pytest.fixture(autouse=True)
def shell(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with credentials and endpoint in the environment, and with the profile of the README."""
    admin = s3_server.credentials["admin"]
    config = tmp_path / "aws-config"
    config.write_text(
        f"[profile research]\naws_access_key_id = {admin.key}\naws_secret_access_key = {admin.secret}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", admin.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", admin.secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    monkeypatch.setenv("AWS_REGION", REGION)


def test_every_block_runs_on_a_bucket(text: str, s3_server: S3Server, s3_prefix: str, tmp_path: Path) -> None:
    """The page as one program that warns of nothing; then its commands on the run in the bucket."""
    folder = tmp_path / "page"
    folder.mkdir()
    script = write_script(folder, program(text, blocks(text, "python")), "README.py")
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    # On a loaded machine any step may take long enough for asyncio's debug mode to say so.
    said = [line for line in done.stderr.splitlines() if not SLOW.fullmatch(line)]
    assert (done.returncode, said) == (0, [])
    assert done.stdout.splitlines()[-2:] == ["99 is the last step", "['first'] in the bucket"]
    assert s3_server.get(f"{s3_prefix}/runs/first/metrics.jsonl", bucket=s3_server.bucket)
    shown = [
        commands.runstore(*words, folder=folder) for words in commands_in(text) if on_a_bucket(words[-1])
    ]
    assert [(command.returncode, command.stderr) for command in shown] == [(0, "")]
    assert "first" in shown[0].stdout
