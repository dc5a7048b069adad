"""What obstore's errors mean for the caller: gone, changed, refused, or to be retried; and why, in one text.

No text of the library is shown, because some quote keys: what is shown is the code of the server's answer, or the
meaning of a sign in it. Source: docs/object-storage.md "Access".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import ModuleType

from storage_core.files.remote.back_end import Changed, Gone, Refused, Unavailable

_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_STATUS = re.compile(r"\b([345]\d\d) (?:Moved|Bad|Unauth|Forbid|Not|Conflict|Temporary|Permanent)")
BARE_REDIRECT = "Received redirect without LOCATION"
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
NO_RIGHT = "the right to read or to list it is missing"
RIGHTS = {
    "s3": "s3:GetObject, s3:ListBucket",
    "gs": "storage.objects.get, storage.objects.list",
    "abfs": "Storage Blob Data Reader",
    "az": "Storage Blob Data Reader",
}
"""Scheme → the rights that a reader needs, in its provider's words."""
_AZURE_KEYS = "storage.accessKey or storage.sasToken, or AZURE_STORAGE_ACCOUNT_KEY in the environment"
CREDENTIALS = {
    "s3": (
        "storage.accessKey and storage.secretKey, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment "
        "(profiles in ~/.aws are not read)"
    ),
    "gs": "storage.credentialsFile, or GOOGLE_APPLICATION_CREDENTIALS in the environment",
    "abfs": _AZURE_KEYS,
    "az": _AZURE_KEYS,
}
"""Scheme → what supplies credentials."""
_IDENTITY = re.compile(
    r"Error performing [A-Z]+ https?://[^/\s]+/(?:latest/(?:api/token|meta-data)|computeMetadata/|metadata/identity)"
)
"""An error from asking a provider's machine for its identity, which is done if no credentials are given."""
TOKEN_REQUEST = "token request"
_HINTS = {
    "InvalidAccessKeyId": "there is no such access key; check storage.accessKey or the environment",
    "SignatureDoesNotMatch": "the secret key does not fit; check storage.secretKey or the environment",
    "ExpiredToken": "the session token has expired; get a new one",
    "InvalidToken": "the session token is wrong; get a new one",
    "AccessDenied": NO_RIGHT,
    "AuthorizationFailure": f"the key or token is wrong, or {NO_RIGHT}",
    "AuthenticationFailed": "the key or token is wrong; check the options or the environment",
    "AuthorizationPermissionMismatch": NO_RIGHT,
    "PermanentRedirect": "the bucket lies in another region; set storage.region",
    "AuthorizationHeaderMalformed": "the bucket lies in another region; set storage.region",
}
NOT_SIGNED = "nobody who is trusted here signed the certificate; name its CA by storage.caFile"
_NO_NAME = "Could not parse path"
_SIGNS = {
    _NO_NAME: "a name has an empty part, . or .., or a control character, which the client cannot ask for",
    "Missing SecretAccessKey": "an access key was given without its secret; set storage.secretKey or the environment",
    "Missing AccessKeyId": "a secret key was given without its id; set storage.accessKey or the environment",
    "Failed to read token file": "the file that AWS_WEB_IDENTITY_TOKEN_FILE names cannot be read",
    "open service account file": "the file that GOOGLE_APPLICATION_CREDENTIALS names cannot be read",
    "decode service account file": "the credentials file is none of a service account or a user",
    "Invalid RSA key": "the private key in the credentials file cannot be read",
    "Account must be specified": (
        "the URI names no account; give storage.account, or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
    ),
    "Invalid Access Key": "storage.accessKey is no key of an account, which is base64",
    "in SAS query": "storage.sasToken is no shared access signature",
    "timed out": "it timed out",
    "TimedOut": "it timed out",
    "dns error": "there is no host of that name",
    "Connection refused": "nobody listens there",
    "ConnectionRefused": "nobody listens there",
    "NotValidForName": "the certificate is for another host than that of the endpoint",
    "UnknownIssuer": NOT_SIGNED,
    "BadSignature": NOT_SIGNED,
    "ExpiredContext": "the certificate has expired",
    "InvalidCertificate": "the certificate is not to be trusted",
    "InvalidContentType": "the endpoint speaks http and not https",
    "connection closed": "the connection was closed",
    "IncompleteMessage": "the connection was closed",
    "ConnectionReset": "the connection was reset",
    "Parse(": "the answer was not HTTP",
    "error sending request": "the connection failed",
    BARE_REDIRECT: _HINTS["PermanentRedirect"],
    "401 Unauthorized": "the key or token is wrong or missing",
    "403 Forbidden": NO_RIGHT,
    "301 Moved": _HINTS["PermanentRedirect"],
    "503 Service": "the other side is too busy (503)",
    "500 Internal": "the other side failed (500)",
    "error decoding response body": "the answer broke off",
    "IncompleteBody": "the answer broke off",
}
_FOR_GOOD = (BARE_REDIRECT, "InvalidCertificate", "InvalidContentType", _NO_NAME)
WANTS_TLS = " (an endpoint that wants TLS begins with https://)"
_SIGNS_OF_TLS = re.compile(r"IncompleteMessage|Parse\(|status code: 400 Bad Request(?!: \{)")


@dataclass
class Answers:
    """The answers of one bucket or container of a scheme, accessed with or without TLS."""

    kinds: ModuleType
    scheme: str
    is_plain: bool

    def meaning(self, error: Exception, opens: bool) -> Exception:
        """Gone, Changed, Refused or Unavailable, in place of an error of the library, whose kinds are `kinds`.

        A caller that `opens` a store without credentials is refused at once. A task of a store that was listed
        elsewhere asks its machine again, which may be busy with many of them.
        """
        kinds, text, reason = self.kinds, str(error), self.text_of(error)
        code = _CODE.search(text)
        if isinstance(error, FileNotFoundError) or (code is not None and code[1] in NO_BUCKET):
            return Gone()
        if isinstance(error, (kinds.PreconditionError, kinds.AlreadyExistsError, kinds.NotModifiedError)):
            return Changed()
        if "416 Range" in text:
            return Changed()
        never = (
            kinds.PermissionDeniedError, kinds.UnauthenticatedError, kinds.InvalidPathError, kinds.NotSupportedError
        )  # fmt: skip
        if isinstance(error, never) or (code is not None and code[1] in _HINTS):
            return Refused(reason)
        if any(sign in text for sign in _FOR_GOOD) or (opens and _IDENTITY.search(text)):
            return Refused(reason)
        wants_tls = code is None and self.is_plain and _SIGNS_OF_TLS.search(text)
        return Unavailable(reason + (WANTS_TLS if wants_tls else ""))

    def text_of(self, error: Exception) -> str:
        """What an error says, without what it may quote: the code of the answer, the meaning of a sign, or its kind."""
        text = str(error)
        if _IDENTITY.search(text):
            advice = f"set {CREDENTIALS[self.scheme]}; storage.anonymous=true reads what everybody may read"
            return f"no credentials are given, and this machine has no identity that may read it; {advice}"
        before = "no token came: " if TOKEN_REQUEST in text else ""
        if code := _CODE.search(text):
            return f"{before}{code[1]}{f': {self._hint(code[1])}' if code[1] in _HINTS else ''}"
        for sign, meaning in _SIGNS.items():
            if sign in text:
                return before + self._with_rights(meaning)
        status = _STATUS.search(text)
        return before + (f"the answer was {status[1]}" if status else type(error).__name__)

    def _hint(self, code: str) -> str:
        return self._with_rights(_HINTS[code])

    def _with_rights(self, reason: str) -> str:
        return f"{reason} ({RIGHTS[self.scheme]})" if reason.endswith(NO_RIGHT) else reason
