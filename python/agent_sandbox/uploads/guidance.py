"""Everything that agents are told about transfers, in one place.

The same sentences stand in tool descriptions, results, refusals and `/llms.txt`, because an agent
reads whichever it meets first. Each says what to do next, and what not to do.
"""

from __future__ import annotations

from agent_sandbox.limits import MAX_FILE_BYTES

NEVER = (
    "Never say that a file was uploaded unless get_upload says `stored` or place_upload succeeded."
    " Never approve a payment or anything irreversible before get_upload says `stored` and the"
    " price is known."
)

CANNOT_PUT = (
    "If you cannot read the file or cannot send an HTTP request from here, say so to the user and"
    " offer the ways that work without you: the page at `url` in a browser (with the value of the"
    " Authorization header as one-time code), `agent-sandbox put FILE` on the command line, or a"
    " public https link for fetch_url."
)

LOST_ANSWER = (
    "If the answer to the PUT is lost or unclear, do not PUT again: a session takes one attempt."
    " Call place_upload with the same upload_id (or get_upload to look). Only if it is not stored,"
    " open a new session with create_upload_url."
)

KEEP_CODE = (
    "The value of the Authorization header is a one-time secret for this one file: send `headers`"
    " exactly as given and only to `url`, never put it into a URL, a file or a message to others."
)

ENDS_WITH_SCOPE = "The scope destroys a named sandbox at its end: finish all uses of it first."

CREATE_UPLOAD_URL = (
    "Open an upload session for one file that is on your side: for any size, and for every file"
    " that you would otherwise have to type. Give the display name, the exact size in bytes and,"
    " if you can, the sha256. You get a url, the method PUT and temporary headers: send the file's"
    " raw bytes there with your own HTTP client or shell, then call place_upload with the"
    f" upload_id. Creating and uploading cost nothing and touch no sandbox. {LOST_ANSWER}"
    f" {CANNOT_PUT} {KEEP_CODE} {NEVER}"
)

GET_UPLOAD = (
    "Say what state an upload session is in: `pending` (nothing came yet), `receiving`, `stored`"
    " (call place_upload), `placed`, or an end. With wait_seconds the call waits for the bytes to"
    f" land. Looking changes nothing. {NEVER}"
)

PLACE_UPLOAD = (
    "Write a stored upload into a sandbox, by its id alone. Safe to repeat: a repeat, also with"
    " another path or sandbox, returns the recorded result with `replayed: true` and writes"
    f" nothing. This is also the right call after a lost PUT answer. {ENDS_WITH_SCOPE}"
)

REVOKE_UPLOAD = (
    "End an upload session that is not needed: its secret stops working and stored bytes are"
    " deleted. It frees a place among the pending uploads, not one of the hourly ones. A placed"
    " file stays in its sandbox."
)

CHECK_TRANSFER = (
    "Ask which ways to move files are open from here, before the first transfer or after a PUT"
    " failed: the host that must be reachable, whether a PUT of an empty probe session arrived,"
    " and the size up to which upload_file and download_file carry a file inline."
)

CREATE_DOWNLOAD_URL = (
    "Stage a file of a sandbox for one download past the model: any size. You get a url, the"
    " method GET, temporary headers, size and sha256. Download it once, with the headers exactly"
    f" as given, then compare size and digest before you use it. {ENDS_WITH_SCOPE}"
)

FETCH_URL = (
    "Let the server fetch a public https link into a sandbox: for files that are online already."
    " The link must work without a login. Private addresses are refused, in redirects too."
    f" {ENDS_WITH_SCOPE}"
)

PUT_WORKS = "A PUT from where you are arrives: use create_upload_url for files, then place_upload."

NO_PROBE = (
    "No probe could be opened: too many upload sessions are open. Use or revoke the pending ones"
    f" with revoke_upload, or wait. {CANNOT_PUT}"
)

NEXT_STEP: dict[str, str] = {
    "E7001": "PUT the file to `url` first, or wait: call get_upload with wait_seconds.",
    "E7002": "Check that id, url and headers belong together and are complete; do not guess.",
    "E7004": "Open a new session with create_upload_url and use it at once.",
    "E7005": "Open a new session with create_upload_url if the file is still needed.",
    "E7006": "Open a new session with create_upload_url.",
    "E7007": LOST_ANSWER,
    "E7008": "Call place_upload with the same upload_id: it gives the result, or tries again.",
    "E7009": "Use or revoke pending uploads; each hour has its own limit as well.",
    "E7010": "Wait retry_after_seconds, then call again.",
    "E7011": LOST_ANSWER,
    "E7012": "Send the headers of create_upload_url exactly as given.",
    "E7013": "Give a plain name, with one of allowed_extensions where there are any; it only names"
    " the file for people.",
    "E7014": "Send a smaller file; check_transfer names the limit.",
    "E7015": "Open a new session with the right size_bytes and sha256.",
    "E7016": "Open a new session and send without pauses, or from a faster connection.",
    "E7017": "Open a new session later, and tell the user.",
    "E7018": "Open a new session with create_upload_url.",
    "E7019": "The attempt is not used: send the same request again in a moment.",
    "E7020": "Open a new session with create_upload_url and send the file again.",
    "E7021": "The attempt is not used: send one plain PUT with Content-Length, as curl -T does.",
    "E7022": "PUT the file's bytes to the upload's url; GET a download's url.",
    "E7023": "The attempt is not used: send the plain bytes, without Content-Encoding.",
    "E7024": "The attempt is not used: send Content-Length, as curl -T FILE does.",
    "E7025": "The attempt is not used: send the declared file, or open a new session.",
    "E7027": "Open a new session with create_upload_url in a moment, and send the file again.",
    "E7030": "Tell the user; if the file is theirs, use create_upload_url.",
    "E7031": "Check the link with the user; it must answer 200 without a login.",
}
"""What to do after a refusal, by the stable code of the error."""


def upload_instructions(url: str) -> str:
    """Return the ready-to-run instructions of a new upload session.

    The secret is not in them: it is to be taken from `headers`, and the command reads it from
    standard input, which keeps it out of the process list. The file is called FILE on purpose: a
    name given by a caller never becomes part of a command.
    """
    return (
        "With T set to the value of headers.Authorization, run:\n"
        f"  printf 'Authorization: %s\\n' \"$T\" | curl -sS -H @- -T FILE '{url}'\n"
        "or, with the same value on standard input:\n"
        f"  printf '%s' \"$T\" | agent-sandbox put FILE '{url}'\n"
        "200 means stored: call place_upload with the upload_id. "
        f"{KEEP_CODE} {LOST_ANSWER} {CANNOT_PUT} {NEVER}"
    )


def download_instructions(url: str) -> str:
    """Return the ready-to-run instructions of a new download."""
    return (
        "With T set to the value of headers.Authorization, run:\n"
        f"  printf 'Authorization: %s\\n' \"$T\" | curl -sS -f -H @- -o FILE '{url}'\n"
        "It works once. Compare size_bytes and sha256 (sha256sum FILE) before you use the file;"
        " if they differ or the transfer broke, call create_download_url again. " + KEEP_CODE
    )


def probe_instructions(url: str, host: str, *, failed: bool) -> str:
    """Return how to try a PUT on an empty probe session.

    Args:
        url: Of the probe.
        host: Of the transfer endpoint, to be allowed where the network is restricted.
        failed: Whether an earlier probe did not come through.
    """
    again = (
        "The last probe did not arrive. If your network is restricted, ask the user to allow"
        f" {host}."
        if failed
        else "Nothing was tried yet."
    )
    return (
        f"{again} With T set to the value of probe.headers.Authorization, run:\n"
        "  printf 'Authorization: %s\\n' \"$T\" |"
        f" curl -sS -m 20 -H @- -X PUT --data-binary '' '{url}'\n"
        "Then call check_transfer again: `put: arrived` means that uploads work from here"
        f" (get_upload with probe.upload_id tells it, too). {CANNOT_PUT}"
    )


def llms_txt(public_url: str, max_bytes: int) -> str:
    """Return `/llms.txt`: how an agent moves files through this server."""
    return f"""# agent-sandbox: moving files

> Files go past the model: a tool hands out a place, an ordinary HTTP request moves the bytes.

This server: {public_url}. Largest upload: {max_bytes} bytes. Files up to {MAX_FILE_BYTES} bytes
whose bytes you already hold as exact Base64 may also go through upload_file and download_file.

## Upload a local file

1. Call create_upload_url {{filename, size_bytes, sha256?}} with the exact size.
2. Send the raw bytes with one PUT to `url`, with `headers` exactly as given. With T set to the
   value of headers.Authorization:

       printf 'Authorization: %s\\n' "$T" | curl -sS -H @- -T FILE "$URL"

   Content-Length is required and must be the declared size; no Content-Encoding, no chunked
   transfer. 200 means stored.
3. Call place_upload {{upload_id, path, sandbox_id?}}: no name, no content, no Base64.

The secret works for one PUT at this one address, for 10 minutes; the file is kept for an hour.

## When an answer is lost

{LOST_ANSWER}

## When you cannot PUT

{CANNOT_PUT}

## Rules

- {NEVER}
- {KEEP_CODE}
- Do not retype data that was refused for its size or digest: open an upload session.

## Other ways

- A file that is online: fetch_url {{url, path, sandbox_id?}}, public https only.
- Out of a sandbox: create_download_url {{path, sandbox_id?}}, one GET with its headers; compare
  size and sha256 afterwards.
- Not sure what works from here: check_transfer {{}}.

## What a refusal means (JSON: error, code, next_step)

- 400 another size or content than declared, or doubtful framing; 401 no secret; 404 unknown
  session or wrong secret; 408 too slow; 409 the one attempt is used; 410 expired or revoked;
  411 no Content-Length; 413 too large; 415 encoded body; 503 busy; 507 no room.
"""
