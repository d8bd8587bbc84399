"""Every error the package raises on purpose, and their one mapping to the outside.

    TidemillError                       500  internal_error
    ├── InvalidRequest                  400  invalid_value
    │   ├── ContextLengthExceeded       400  context_length_exceeded
    │   ├── UnsupportedParameter        400  unsupported_parameter
    │   ├── TemplateRejected            400  template_rejected
    │   └── Quarantined                 400  quarantined
    ├── Unauthorized                    401  invalid_api_key
    ├── Forbidden                       403  forbidden
    ├── NotFound                        404  not_found
    │   └── ModelNotFound               404  model_not_found
    ├── MethodNotAllowed                405  method_not_allowed
    ├── RequestTimeout                  408  request_timeout
    ├── PayloadTooLarge                 413  payload_too_large
    ├── UnsupportedMediaType            415  unsupported_media_type
    ├── RateLimited                     429  rate_limit_exceeded    (retryable)
    ├── Overloaded                      429  overloaded             (retryable)
    ├── DeadlineExceeded                504  deadline_exceeded
    ├── Unavailable                     503  unavailable            (retryable)
    │   ├── DeadlineUnreachable         503  deadline_unreachable   (retryable)
    │   ├── EngineDied                  503  engine_died            (retryable)
    │   └── Draining                    503  draining               (retryable)
    └── SetupError                      the command line's exit code 2
        ├── ModelLoadError              a model's files are missing, damaged or unknown
        ├── DoesNotFit                  the plan needs more memory than there is
        └── ConfigError                 a setting has a value it cannot have

A shortage that is expected (no free block, nothing to schedule) is a ``None`` or a verdict, never one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "ConfigError",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "DeadlineUnreachable",
    "DoesNotFit",
    "Draining",
    "EngineDied",
    "Forbidden",
    "InvalidRequest",
    "MethodNotAllowed",
    "ModelLoadError",
    "ModelNotFound",
    "NotFound",
    "Overloaded",
    "PayloadTooLarge",
    "Quarantined",
    "RateLimited",
    "RequestTimeout",
    "SetupError",
    "TemplateRejected",
    "TidemillError",
    "Unauthorized",
    "Unavailable",
    "UnsupportedMediaType",
    "UnsupportedParameter",
]


class TidemillError(Exception):
    """The root. ``param`` names the request field or setting that has to change, where there is one; ``retry_after`` is
    when the same request may do better, in seconds from now, where that is known."""

    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape: the value of ``error`` in a body or in a stream's error event."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @staticmethod
    def of_body(body: Mapping[str, Any]) -> TidemillError:
        """What ``body`` made a body of: the class by its code; the root for a code that is none of these."""
        said = body.get("error")
        error = said if isinstance(said, Mapping) else {}
        kinds = (kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, TidemillError))
        found = next((kind for kind in kinds if kind.code == error.get("code")), TidemillError)
        return found(str(error.get("message", "the answer broke off")), param=error.get("param"))


class InvalidRequest(TidemillError):
    """The caller has to change the request: a field has a wrong type, value or combination."""

    code = "invalid_value"
    type = "invalid_request_error"
    status = 400


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus requested output can never fit the model's length or the KV pool."""

    code = "context_length_exceeded"


class UnsupportedParameter(InvalidRequest):
    """A field with a meaning this build cannot honour; ignoring it would change the answer."""

    code = "unsupported_parameter"


class TemplateRejected(InvalidRequest):
    """The model's chat template refused the messages; the message is the template's own reason."""

    code = "template_rejected"


class Quarantined(InvalidRequest):
    """The engine died while it computed this prompt, more than once: it is not tried again for a while."""

    code = "quarantined"


class Unauthorized(TidemillError):
    """No API key, or not a known one."""

    code = "invalid_api_key"
    type = "authentication_error"
    status = 401


class Forbidden(TidemillError):
    """The request is understood and refused, for example for its Host header."""

    code = "forbidden"
    type = "permission_error"
    status = 403


class NotFound(TidemillError):
    """No such route or object."""

    code = "not_found"
    type = "invalid_request_error"
    status = 404


class ModelNotFound(NotFound):
    """The request names a model that is not served here."""

    code = "model_not_found"


class MethodNotAllowed(TidemillError):
    """The route exists, but not for this HTTP method."""

    code = "method_not_allowed"
    type = "invalid_request_error"
    status = 405


class RequestTimeout(TidemillError):
    """The caller began a body and did not go on with it."""

    code = "request_timeout"
    type = "invalid_request_error"
    status = 408


class PayloadTooLarge(TidemillError):
    """The body is over the limit in bytes."""

    code = "payload_too_large"
    type = "invalid_request_error"
    status = 413


class UnsupportedMediaType(TidemillError):
    """The body is said to be something else than plain JSON."""

    code = "unsupported_media_type"
    type = "invalid_request_error"
    status = 415


class RateLimited(TidemillError):
    """The caller's key has used what it may use for now."""

    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    status = 429
    retryable = True


class Overloaded(TidemillError):
    """The queue is full: try again later."""

    code = "overloaded"
    type = "rate_limit_error"
    status = 429
    retryable = True


class DeadlineExceeded(TidemillError):
    """The time that the caller gave the request is over; its work has been ended."""

    code = "deadline_exceeded"
    type = "timeout_error"
    status = 504


class Unavailable(TidemillError):
    """The engine cannot take work now."""

    code = "unavailable"
    type = "service_unavailable_error"
    status = 503
    retryable = True


class DeadlineUnreachable(Unavailable):
    """The answer could not be there within the time that the caller gives it: said now and not when it is over."""

    code = "deadline_unreachable"


class EngineDied(Unavailable):
    """The engine process ended while it held this request."""

    code = "engine_died"


class Draining(Unavailable):
    """The server is stopping: it finishes what runs and takes nothing new."""

    code = "draining"


class SetupError(TidemillError):
    """Something before the first request is wrong: the command line prints one line and exits with 2.

    Messages quote names and values from files that are not trusted: they are made one line of printable text, and cut
    in the middle where they are too long to be read.
    """

    code = "setup_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(_one_line(message), param=param)


class ModelLoadError(SetupError):
    """A model cannot be loaded: the message names the file, tensor or field, and what was expected."""

    code = "model_load_error"


class DoesNotFit(SetupError):
    """Weights, KV and workspace need more memory than there is: the message names the setting to change."""

    code = "does_not_fit"


class ConfigError(SetupError):
    """A setting has a value it cannot have: the message names the setting and the fix."""

    code = "config_error"


_BEGINNING, _END = 1200, 300


def _one_line(message: str) -> str:
    if len(message) > _BEGINNING + _END:
        left_out = len(message) - _BEGINNING - _END
        message = f"{message[:_BEGINNING]}... ({left_out} characters) ...{message[-_END:]}"
    if message.isprintable():
        return message
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in message)
