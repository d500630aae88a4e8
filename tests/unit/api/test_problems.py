"""One table from errors to HTTP."""

import inspect

import pytest

from vllm_mm.api.problems import TABLE, MethodNotAllowed, explain, explain_admin
from vllm_mm.domain import errors
from vllm_mm.domain.errors import BadRequest, ConfigError, Conflict, MMError, PayloadTooLarge, Unavailable
from vllm_mm.store.failures import DatabaseFull

KINDS = [k for _, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, MMError) and k is not MMError]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_error_has_its_row(kind: type[MMError]) -> None:
    """Nothing that is raised on purpose ends as a 500 for want of a row."""
    assert any(issubclass(kind, row.kind) for row in TABLE)


def test_no_row_hides_another() -> None:
    """The first that fits counts, so a base never stands before its special kinds."""
    for at, row in enumerate(TABLE):
        assert not any(issubclass(later.kind, row.kind) for later in TABLE[at + 1 :]), row


def test_the_two_apis_differ_where_the_table_says_so_and_nowhere_else() -> None:
    """A wrong declaration is 422 for an administrator, as what FastAPI refuses; the data plane says 400 like OpenAI's."""
    differ = {row.kind for row in TABLE if row.admin is not None}
    assert differ == {BadRequest, ConfigError}
    assert (explain(BadRequest("x")).status, explain_admin(BadRequest("x")).status) == (400, 422)
    for error in (PayloadTooLarge("x"), Conflict("x"), MethodNotAllowed("x"), Unavailable("x"), DatabaseFull("x")):
        assert explain(error) == explain_admin(error)
    assert explain(RuntimeError("secret")) == explain_admin(RuntimeError("secret"))
    assert "secret" not in explain(RuntimeError("secret")).message
