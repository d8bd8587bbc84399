"""The address a server listens on: who can reach it, and whether it may be opened. Imports nothing of HTTP, so that a
mistake is told before anything heavy is loaded."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import ssl

from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.serve.access.key_file import KeyFile

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::\d{1,5})?")

__all__ = ["bind", "check_config", "is_loopback"]


def check_config(config: ServerConfig) -> None:
    """Raise ConfigError for a door that would be open to everybody."""
    if not is_loopback(config.host) and not config.api_keys and config.keys_file is None:
        raise ConfigError(
            f"host {config.host} can be reached from other machines: set keys_file or api_keys, or bind 127.0.0.1",
            param="host",
        )
    if any(not key.strip() or key != key.strip() or not key.isascii() for key in config.api_keys):
        raise ConfigError("api_keys must be ASCII text that is not empty and has no blanks around it", param="api_keys")
    if config.keys_file is not None:
        KeyFile(config.keys_file).read()
    _check_origins(config)
    _check_tls(config)
    for name in ("max_body_bytes", "drain_seconds", "slow_reader_seconds"):
        if getattr(config, name) < (name != "drain_seconds"):
            raise ConfigError(f"{name} must not be {getattr(config, name)}", param=name)
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"port must be between 0 and 65535, not {config.port}", param="port")


def _check_origins(config: ServerConfig) -> None:
    for origin in config.allowed_origins:
        if origin == "*":
            if not config.api_keys and config.keys_file is None:
                raise ConfigError(
                    "allowed_origins * lets every web page use a server without keys: set keys_file or api_keys",
                    param="allowed_origins",
                )
        elif not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"allowed_origins takes scheme://host[:port] in lower case, as https://tide.example, not {origin!r}",
                param="allowed_origins",
            )


def _check_tls(config: ServerConfig) -> None:
    if (config.tls_certificate is None) != (config.tls_key is None):
        missing = "tls_key" if config.tls_key is None else "tls_certificate"
        raise ConfigError(f"{missing} is missing: TLS takes a certificate and its key", param=missing)
    if config.tls_certificate is None or config.tls_key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.tls_certificate, config.tls_key, password=_no_password
        )
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"tls_certificate {config.tls_certificate} with tls_key {config.tls_key}: {reason}", param="tls_certificate"
        ) from error


def _no_password() -> str:
    """In place of a question at the terminal."""
    raise ValueError("the key has a password")


def bind(config: ServerConfig) -> socket.socket:
    """The listening socket. Raises ConfigError for an address that cannot be had."""
    try:
        found = socket.getaddrinfo(config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason += "; set port to another one, or to 0 for any that is free"
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}", param="port") from error
    return listener


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
