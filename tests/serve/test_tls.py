"""HTTPS with a certificate made here."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.serve.listener import check_config
from tidemill.serve.server import ready_line

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    words = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout {key} -out {certificate}"
    words += " -subj /CN=tide -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    return certificate, key


def config(certificate: object, key: object) -> ServerConfig:
    return ServerConfig(tls_certificate=str(certificate), tls_key=str(key))


async def test_a_client_that_checks_the_certificate_is_answered(serve, files):
    async with serve(list(b"ok"), config=config(*files)) as served:
        context = ssl.create_default_context(cafile=files[0])
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            base = f"https://127.0.0.1:{served.port}/v1/chat/completions"
            answer = await client.post(base, json={"messages": [{"role": "user", "content": "Hi"}]})
        with pytest.raises(httpx.HTTPError):
            await served.client.get("/health")  # in the clear
    assert answer.json()["choices"][0]["message"]["content"] == "ok"


def test_the_ready_line_says_https(files):
    assert "https://127.0.0.1:9/v1" in ready_line("127.0.0.1", 9, "m", config(*files), example="chat")


def test_files_that_cannot_be(files, tmp_path):
    certificate, key = files
    check_config(config(certificate, key))
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:tide", "-out", locked],
        check=True,
        capture_output=True,
    )
    for one, other, said in (
        (certificate, tmp_path / "none", "No such file"),
        (key, certificate, "tls_key"),
        (certificate, locked, "password"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            check_config(config(one, other))
        assert caught.value.param == "tls_certificate"
    with pytest.raises(ConfigError, match="tls_key is missing"):
        check_config(ServerConfig(tls_certificate=str(certificate)))
