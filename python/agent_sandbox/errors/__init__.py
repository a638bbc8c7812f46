"""Every public error of agent_sandbox, in one tree and one table.

::

    AgentSandboxError                       E1000
    ├── InvalidInputError                   E2000
    │   ├── ArgumentError                   E2001
    │   ├── PathError                       E2002
    │   ├── Base64Error (ValueError)        E2003   .offset
    │   ├── TextEncodingError               E2004
    │   ├── DeclarationError                E2005
    │   └── UnknownToolError                E2006
    ├── SizeLimitError                      E3001   .limit
    ├── FileOperationError                  E4000
    │   ├── FileMissingError                E4001
    │   ├── FilePermissionError             E4002
    │   ├── FileSizeLimitError              E4003   .limit (also a SizeLimitError)
    │   ├── FileKindError (InvalidInput)    E4004
    │   ├── FileConflictError (InvalidInput) E4005
    │   ├── StorageFullError                E4006
    │   ├── TransferError                   E4007
    │   ├── TransferTimeoutError            E4008
    │   └── UploadTimeoutError              E4009
    ├── SandboxError                        E5000
    │   ├── SandboxNotFoundError            E5001
    │   ├── SandboxOwnedError               E5002
    │   ├── SandboxUnavailableError         E5003
    │   ├── SandboxTimeoutError             E5004
    │   ├── AuthenticationError             E5005
    │   ├── UnsupportedError                E5006
    │   ├── ProcessNotFoundError            E5007
    │   ├── CommandTimeoutError             E5008   .result
    │   ├── CommandFailedError              E5009   .result
    │   ├── SlowReaderError                 E5010
    │   ├── InputClosedError (InvalidInput) E5011
    │   ├── TaskNotFoundError               E5012
    │   ├── TaskQuotaError                  E5013
    │   ├── WatchLimitError                 E5014
    │   └── ServiceBusyError                E5015
    ├── ConfigError                         E6000   .reason
    ├── UploadError                         E7000
    │   ├── UploadNotReadyError             E7001   .state
    │   ├── UploadNotFoundError             E7002
    │   ├── UploadGoneError                 E7003
    │   │   ├── UploadExpiredError          E7004
    │   │   └── UploadRevokedError          E7005
    │   ├── UploadFailedError               E7006
    │   ├── UploadConflictError             E7007   .state
    │   ├── UploadPlacingError              E7008
    │   ├── UploadQuotaError                E7009   .quota
    │   ├── UploadRateError                 E7010   .retry_after_s
    │   ├── UploadOutcomeUnknownError       E7011   .state
    │   ├── UploadSecretMissingError        E7012
    │   ├── UploadNameError                 E7013   .allowed_extensions
    │   ├── UploadSizeError (SizeLimit)     E7014   .limit
    │   ├── UploadBodyError                 E7015
    │   ├── UploadBodyTimeoutError          E7016
    │   ├── UploadStorageFullError          E7017
    │   ├── UploadStorageError              E7018
    │   ├── UploadBusyError                 E7019
    │   ├── UploadCorruptError              E7020
    │   ├── UploadFramingError              E7021
    │   ├── UploadMethodError               E7022
    │   ├── UploadEncodingError             E7023
    │   ├── UploadLengthRequiredError       E7024
    │   ├── UploadLengthError               E7025
    │   ├── DownloadUsedError               E7026
    │   ├── UploadInterruptedError          E7027
    │   ├── FetchRefusedError               E7030
    │   └── FetchError                      E7031
    └── AccessError                         E8000
        ├── CredentialsMissingError         E8001
        ├── CredentialsInvalidError         E8002
        ├── CredentialsMalformedError       E8003
        ├── ScopeMissingError               E8004
        └── CredentialsUncheckedError       E8005

A message never holds input: no path, no secret, no upstream text, no file content. Whatever a
program needs beyond the code stands in attributes; only a ConfigError's text ends with its reason.
"""

from __future__ import annotations

from agent_sandbox.errors.access import (
    AccessError,
    CredentialsInvalidError,
    CredentialsMalformedError,
    CredentialsMissingError,
    CredentialsUncheckedError,
    ScopeMissingError,
)
from agent_sandbox.errors.base import (
    CATEGORIES,
    EXIT_STATUS,
    TABLE,
    AgentSandboxError,
    Category,
    ErrorRow,
)
from agent_sandbox.errors.files import (
    FileConflictError,
    FileKindError,
    FileMissingError,
    FileOperationError,
    FilePermissionError,
    FileSizeLimitError,
    StorageFullError,
    TransferError,
    TransferTimeoutError,
    UploadTimeoutError,
)
from agent_sandbox.errors.inputs import (
    ArgumentError,
    Base64Error,
    DeclarationError,
    InvalidInputError,
    PathError,
    SizeLimitError,
    TextEncodingError,
    UnknownToolError,
)
from agent_sandbox.errors.sandboxes import (
    AuthenticationError,
    CommandFailedError,
    CommandTimeoutError,
    ConfigError,
    InputClosedError,
    ProcessNotFoundError,
    SandboxError,
    SandboxNotFoundError,
    SandboxOwnedError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    ServiceBusyError,
    SlowReaderError,
    TaskNotFoundError,
    TaskQuotaError,
    UnsupportedError,
    WatchLimitError,
)
from agent_sandbox.errors.uploads import (
    DownloadUsedError,
    FetchError,
    FetchRefusedError,
    UploadBodyError,
    UploadBodyTimeoutError,
    UploadBusyError,
    UploadConflictError,
    UploadCorruptError,
    UploadEncodingError,
    UploadError,
    UploadExpiredError,
    UploadFailedError,
    UploadFramingError,
    UploadGoneError,
    UploadInterruptedError,
    UploadLengthError,
    UploadLengthRequiredError,
    UploadMethodError,
    UploadNameError,
    UploadNotFoundError,
    UploadNotReadyError,
    UploadOutcomeUnknownError,
    UploadPlacingError,
    UploadQuotaError,
    UploadRateError,
    UploadRevokedError,
    UploadSecretMissingError,
    UploadSizeError,
    UploadStorageError,
    UploadStorageFullError,
)

__all__ = [
    "BY_CODE",
    "CATEGORIES",
    "EXIT_STATUS",
    "TABLE",
    "AccessError",
    "AgentSandboxError",
    "ArgumentError",
    "AuthenticationError",
    "Base64Error",
    "Category",
    "CommandFailedError",
    "CommandTimeoutError",
    "ConfigError",
    "CredentialsInvalidError",
    "CredentialsMalformedError",
    "CredentialsMissingError",
    "CredentialsUncheckedError",
    "DeclarationError",
    "DownloadUsedError",
    "ErrorRow",
    "FetchError",
    "FetchRefusedError",
    "FileConflictError",
    "FileKindError",
    "FileMissingError",
    "FileOperationError",
    "FilePermissionError",
    "FileSizeLimitError",
    "InputClosedError",
    "InvalidInputError",
    "PathError",
    "ProcessNotFoundError",
    "SandboxError",
    "SandboxNotFoundError",
    "SandboxOwnedError",
    "SandboxTimeoutError",
    "SandboxUnavailableError",
    "ScopeMissingError",
    "ServiceBusyError",
    "SizeLimitError",
    "SlowReaderError",
    "StorageFullError",
    "TaskNotFoundError",
    "TaskQuotaError",
    "TextEncodingError",
    "TransferError",
    "TransferTimeoutError",
    "UnknownToolError",
    "UnsupportedError",
    "UploadBodyError",
    "UploadBodyTimeoutError",
    "UploadBusyError",
    "UploadConflictError",
    "UploadCorruptError",
    "UploadEncodingError",
    "UploadError",
    "UploadExpiredError",
    "UploadFailedError",
    "UploadFramingError",
    "UploadGoneError",
    "UploadInterruptedError",
    "UploadLengthError",
    "UploadLengthRequiredError",
    "UploadMethodError",
    "UploadNameError",
    "UploadNotFoundError",
    "UploadNotReadyError",
    "UploadOutcomeUnknownError",
    "UploadPlacingError",
    "UploadQuotaError",
    "UploadRateError",
    "UploadRevokedError",
    "UploadSecretMissingError",
    "UploadSizeError",
    "UploadStorageError",
    "UploadStorageFullError",
    "UploadTimeoutError",
    "WatchLimitError",
]

BY_CODE: dict[str, type[AgentSandboxError]] = {row.code: cls for cls, row in TABLE.items()}
"""Every error by its stable code."""
