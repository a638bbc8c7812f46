"""The statements, written once for both databases.

`:name` marks a parameter and `uploads_now_ms()` the database's clock. What a statement decides,
it decides alone: no statement depends on what an earlier one read.
"""

from __future__ import annotations

from typing import Final

_ENDS = "('placed', 'failed', 'expired', 'revoked')"
_FRESH = "(state = 'pending' AND put_by_unix_ms > uploads_now_ms())"
_USABLE = "(state = 'stored' AND use_by_unix_ms > uploads_now_ms())"

# The state in force, so that no caller depends on how often the sweep runs.
_STATE = """CASE WHEN state = 'pending' AND put_by_unix_ms <= uploads_now_ms() THEN 'expired'
      WHEN state = 'stored' AND use_by_unix_ms <= uploads_now_ms() THEN 'expired'
      ELSE state END"""
_COLUMNS = f"""upload_id, kind, workspace, credential_id, endpoint, filename, size_bytes, sha256,
 secret_hmac, {_STATE} AS state,
 created_unix_ms, put_by_unix_ms, use_by_unix_ms, uploads_now_ms() AS now_unix_ms,
 attempt, object_key, receive_by_unix_ms, received_bytes, received_sha256, revoke_requested,
 CASE WHEN place_phase = 'open' AND place_lease_unix_ms <= uploads_now_ms() THEN 'unknown'
      ELSE place_phase END AS place_phase,
 place_attempt, place_count, place_target, place_result, reason"""

# Each count is one range of one index that holds all it needs: a workspace may have a day of rows.
_PENDING = """((SELECT count(*) FROM upload_sessions WHERE workspace = :workspace AND kind = :kind
 AND state = 'pending' AND put_by_unix_ms > uploads_now_ms())
 + (SELECT count(*) FROM upload_sessions WHERE workspace = :workspace AND kind = :kind
 AND state = 'receiving'))"""
_HOURLY = """(SELECT count(*) FROM upload_sessions WHERE workspace = :workspace AND kind = :kind
 AND created_unix_ms > n.now_ms - 3600000)"""

CREATE: Final = f"""
WITH n AS MATERIALIZED (SELECT uploads_now_ms() AS now_ms)
INSERT INTO upload_sessions (upload_id, kind, workspace, credential_id, endpoint, filename,
 size_bytes, sha256, secret_hmac, state, created_unix_ms, put_by_unix_ms, use_by_unix_ms)
SELECT :upload_id, :kind, :workspace, :credential_id, :endpoint, :filename, :size_bytes, :sha256,
 :secret_hmac, 'pending', n.now_ms, n.now_ms + :put_life_ms, n.now_ms + :use_life_ms
FROM n
WHERE {_PENDING} < :pending_max AND {_HOURLY} < :hourly_max
RETURNING {_COLUMNS}"""  # noqa: S608 - constants of this module only, here and below

CREATE_MANY: Final = f"""
WITH n AS MATERIALIZED (SELECT uploads_now_ms() AS now_ms),
room AS MATERIALIZED (
 SELECT least(:pending_max - {_PENDING}, :hourly_max - {_HOURLY}) AS places FROM n)
INSERT INTO upload_sessions (upload_id, kind, workspace, credential_id, endpoint, filename,
 size_bytes, sha256, secret_hmac, state, created_unix_ms, put_by_unix_ms, use_by_unix_ms)
SELECT item ->> 'upload_id', :kind, :workspace, :credential_id, item ->> 'endpoint',
 item ->> 'filename', CAST(item ->> 'size_bytes' AS BIGINT), item ->> 'sha256',
 decode(item ->> 'secret_hmac', 'hex'), 'pending', n.now_ms, n.now_ms + :put_life_ms,
 n.now_ms + :use_life_ms
FROM n, room, jsonb_array_elements(CAST(:items AS JSONB)) WITH ORDINALITY AS given (item, turn)
WHERE turn <= room.places
RETURNING {_COLUMNS}"""  # noqa: S608
"""PostgreSQL only: several creations of one caller, as many as there is room for, in order."""

PENDING_COUNT: Final = f"SELECT {_PENDING} AS n"

READ: Final = f"SELECT {_COLUMNS} FROM upload_sessions WHERE upload_id = :upload_id"  # noqa: S608

LATEST: Final = f"""
SELECT {_COLUMNS} FROM upload_sessions
WHERE credential_id = :credential_id AND workspace = :workspace AND filename = :filename
ORDER BY created_unix_ms DESC LIMIT 1"""  # noqa: S608

CLAIM_PUT: Final = f"""
UPDATE upload_sessions SET state = 'receiving', attempt = :attempt, object_key = :object_key,
 receive_by_unix_ms = uploads_now_ms() + :body_ms
WHERE upload_id = :upload_id AND {_FRESH}
RETURNING {_COLUMNS}"""  # noqa: S608

RECORD_RECEIVED: Final = f"""
UPDATE upload_sessions SET received_bytes = :size_bytes, received_sha256 = :sha256
WHERE upload_id = :upload_id AND attempt = :attempt AND state = 'receiving'
RETURNING {_COLUMNS}"""  # noqa: S608

FINISH_PUT: Final = f"""
UPDATE upload_sessions SET reason = :reason,
 state = CASE WHEN revoke_requested = 1 AND :to_state = 'stored' THEN 'revoked'
              ELSE :to_state END
WHERE upload_id = :upload_id AND attempt = :attempt AND state IN ('receiving', 'unknown')
RETURNING {_COLUMNS}"""  # noqa: S608

CLAIM_PLACE: Final = f"""
UPDATE upload_sessions SET state = 'placing', place_phase = 'open', place_attempt = :attempt,
 place_count = place_count + 1, place_lease_unix_ms = uploads_now_ms() + :lease_ms,
 place_target = :target, reason = NULL
WHERE upload_id = :upload_id
  AND ({_USABLE}
    OR (state = 'placing' AND place_phase = 'closed')
    OR (state = 'placing' AND place_attempt = :after AND (place_phase = 'unknown'
        OR (place_phase = 'open' AND place_lease_unix_ms <= uploads_now_ms()))))
RETURNING {_COLUMNS}"""  # noqa: S608

SETTLE_PLACE: Final = f"""
UPDATE upload_sessions SET place_phase = :phase, place_result = :result, reason = :reason,
 state = CASE WHEN :phase = 'done' THEN 'placed' ELSE state END
WHERE upload_id = :upload_id AND state = 'placing' AND place_attempt = :attempt
  AND place_phase IN ('open', 'unknown')
RETURNING {_COLUMNS}"""  # noqa: S608

REVOKE: Final = f"""
UPDATE upload_sessions SET revoke_requested = 1,
 state = CASE WHEN state = 'receiving' THEN state ELSE 'revoked' END
WHERE upload_id = :upload_id AND (state = 'receiving' OR {_FRESH} OR {_USABLE})
RETURNING {_COLUMNS}"""  # noqa: S608

REVOKE_CREDENTIAL: Final = f"""
UPDATE upload_sessions SET revoke_requested = 1,
 state = CASE WHEN state = 'receiving' THEN state ELSE 'revoked' END
WHERE credential_id = :credential_id AND (:workspace IS NULL OR workspace = :workspace)
  AND (state = 'receiving' OR {_FRESH} OR (kind = 'download' AND {_USABLE}))
RETURNING {_COLUMNS}"""  # noqa: S608

EXPIRE: Final = f"""
UPDATE upload_sessions SET state = 'expired'
WHERE (state = 'pending' AND put_by_unix_ms <= uploads_now_ms())
   OR (state = 'stored' AND use_by_unix_ms <= uploads_now_ms())
   OR (state = 'placing' AND place_phase = 'closed'
       AND created_unix_ms <= uploads_now_ms() - :keep_ms)
   OR (kind = 'download' AND state = 'placing' AND place_lease_unix_ms <= uploads_now_ms())
RETURNING {_COLUMNS}"""  # noqa: S608

UNSETTLED: Final = f"""
SELECT {_COLUMNS} FROM upload_sessions
WHERE upload_id > :after AND (state = 'unknown' OR (state = 'receiving'
  AND (:everything = 1 OR receive_by_unix_ms + :grace_ms <= uploads_now_ms())))
ORDER BY upload_id LIMIT :row_limit"""  # noqa: S608

BLOBS_TO_DELETE: Final = f"""
SELECT {_COLUMNS} FROM upload_sessions
WHERE upload_id > :after AND state IN {_ENDS} AND object_key IS NOT NULL
ORDER BY upload_id LIMIT :row_limit"""  # noqa: S608

FORGET_BLOB: Final = f"""
UPDATE upload_sessions SET object_key = NULL
WHERE upload_id = :upload_id AND object_key = :object_key AND state IN {_ENDS}
RETURNING upload_id"""  # noqa: S608

REMOVE_OLD: Final = f"""
DELETE FROM upload_sessions WHERE state IN {_ENDS} AND object_key IS NULL
 AND created_unix_ms <= uploads_now_ms() - :keep_ms
RETURNING upload_id"""  # noqa: S608

COUNT_STATES: Final = f"""
SELECT state, count(*) AS n FROM (SELECT {_STATE} AS state FROM upload_sessions) AS every
GROUP BY state"""  # noqa: S608

NOW: Final = "SELECT uploads_now_ms() AS n"

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE upload_sessions (
 upload_id TEXT NOT NULL PRIMARY KEY,
 kind TEXT NOT NULL CHECK (kind IN ('upload', 'download')),
 workspace TEXT NOT NULL,
 credential_id TEXT NOT NULL,
 endpoint TEXT NOT NULL,
 filename TEXT NOT NULL,
 size_bytes BIGINT NOT NULL CHECK (size_bytes >= 0),
 sha256 TEXT,
 secret_hmac {BYTES} NOT NULL,
 state TEXT NOT NULL CHECK (state IN ('pending', 'receiving', 'stored', 'placing', 'placed',
  'failed', 'expired', 'revoked', 'unknown')),
 created_unix_ms BIGINT NOT NULL,
 put_by_unix_ms BIGINT NOT NULL,
 use_by_unix_ms BIGINT NOT NULL,
 attempt TEXT,
 object_key TEXT UNIQUE,
 receive_by_unix_ms BIGINT,
 received_bytes BIGINT,
 received_sha256 TEXT,
 revoke_requested BIGINT NOT NULL DEFAULT 0,
 place_phase TEXT NOT NULL DEFAULT 'none' CHECK (place_phase IN ('none', 'open', 'closed',
  'unknown', 'done')),
 place_attempt TEXT,
 place_count BIGINT NOT NULL DEFAULT 0,
 place_lease_unix_ms BIGINT,
 place_target TEXT,
 place_result TEXT,
 reason TEXT)""",
        "CREATE INDEX upload_sessions_quota ON upload_sessions (workspace, created_unix_ms)",
        "CREATE INDEX upload_sessions_state ON upload_sessions (state, created_unix_ms)",
        "CREATE INDEX upload_sessions_credential ON upload_sessions (credential_id)",
    ),
    (
        "DROP INDEX upload_sessions_quota",
        """CREATE INDEX upload_sessions_hourly
 ON upload_sessions (workspace, kind, created_unix_ms)""",
        """CREATE INDEX upload_sessions_pending
 ON upload_sessions (workspace, kind, put_by_unix_ms) WHERE state = 'pending'""",
        """CREATE INDEX upload_sessions_receiving
 ON upload_sessions (workspace, kind) WHERE state = 'receiving'""",
    ),
)
"""One tuple of statements for each version of the schema, oldest first."""
