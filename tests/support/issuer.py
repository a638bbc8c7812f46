"""An OAuth authorization server on loopback: keys, metadata, and tokens for client credentials."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

RESOURCE = "https://sandboxes.example/mcp"
"""What the tokens are for, unless a test says something else."""

CLIENTS = {"agent": "the-secret-of-agent", "other": "the-secret-of-other"}
"""Clients that get tokens at `/token`."""

_MAKERS: dict[str, Any] = {
    "RSA": lambda: rsa.generate_private_key(public_exponent=65_537, key_size=2_048),
    "short": lambda: rsa.generate_private_key(public_exponent=65_537, key_size=1_024),  # noqa: S505 - to be refused
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@dataclass(frozen=True)
class SigningKey:
    """A key pair with its name."""

    kid: str
    private: Any

    @classmethod
    def make(cls, kid: str, kind: str = "RSA") -> SigningKey:
        """Return a new key of a kind."""
        return cls(kid, _MAKERS[kind]())

    def public_jwk(self, **more: Any) -> dict[str, Any]:
        """Return its public half as a JWK."""
        public = self.private.public_key()
        algorithm: Any = OKPAlgorithm
        if isinstance(public, rsa.RSAPublicKey):
            algorithm = RSAAlgorithm
        elif isinstance(public, ec.EllipticCurvePublicKey):
            algorithm = ECAlgorithm
        jwk = json.loads(algorithm.to_jwk(public))
        return {k: v for k, v in jwk.items() if k != "key_ops"} | {"kid": self.kid, **more}


@dataclass
class Issuer:
    """A running issuer.

    Attributes:
        url: Its name and address.
        key: What it signs with.
        jwks: What it publishes; None answers 500.
        fetches: How often its keys were fetched.
        described_at: Where its metadata is.
        described: What its metadata says otherwise than it should.
    """

    url: str
    key: SigningKey
    jwks: list[dict[str, Any]] | bytes | None
    fetches: int = 0
    scopes: str = "sandboxes:use"
    resource: str = RESOURCE
    described_at: str = "/.well-known/"
    described: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    @property
    def jwks_url(self) -> str:
        """Where its keys are."""
        return f"{self.url}/keys"

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of a good token, changed; None leaves one out."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "aud": self.resource,
            "sub": "alice",
            "client_id": "agent",
            "iat": now,
            "exp": now + 300,
            "jti": "token-1",
            "scope": self.scopes,
        }
        return {k: v for k, v in {**good, **changed}.items() if v is not None}

    def token(
        self,
        *,
        key: SigningKey | None = None,
        algorithm: str = "RS256",
        header: dict[str, Any] | None = None,
        **changed: Any,
    ) -> str:
        """Return a token; `header` adds to its header."""
        signing = key or self.key
        return jwt.encode(
            self.claims(**changed),
            signing.private,
            algorithm=algorithm,
            headers={"kid": signing.kid, "typ": "at+jwt", **(header or {})},
        )

    def arguments(self, *more: str) -> list[str]:
        """Return the options of a server that takes its tokens."""
        return [
            f"--oauth-issuer={self.url}",
            f"--oauth-jwks-url={self.jwks_url}",
            f"--oauth-resource={self.resource}",
            f"--oauth-scope={self.scopes}",
            *more,
        ]

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET."""
        if path == "/keys":
            self.fetches += 1
            if self.jwks is None:
                return 500, b"secret-of-the-issuer"
            body = self.jwks if isinstance(self.jwks, bytes) else None
            return 200, body or json.dumps({"keys": self.jwks}).encode()
        if path.startswith(self.described_at):
            described = {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": self.jwks_url,
                "response_types_supported": ["code"],
                "grant_types_supported": ["client_credentials"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            }
            return 200, json.dumps(described | self.described).encode()
        return 404, b"{}"

    def grant(self, authorization: str) -> tuple[int, bytes]:
        """Return status and body of a POST to `/token` by a client with its secret."""
        client, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
        if CLIENTS.get(client) != secret:
            return 401, b'{"error": "invalid_client"}'
        token = self.token(sub=client, client_id=client)
        granted = {"access_token": token, "token_type": "Bearer", "expires_in": 300}
        return 200, json.dumps(granted).encode()


@contextlib.contextmanager
def running_issuer() -> Iterator[Issuer]:
    """Run an issuer with one RSA key."""
    issuer: Issuer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.reply(*issuer.answer(self.path))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.reply(*issuer.grant(self.headers["authorization"]))

        def reply(self, status: int, body: bytes) -> None:
            issuer.seen.append(self.path)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        key = SigningKey.make("first")
        issuer = Issuer(f"http://127.0.0.1:{server.server_port}", key, [key.public_jwk()])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
