"""One classification of failures: a user's error is recognised in any wrapper, and all else is a bug."""

import errno
import json

import httpx
import pytest
import requests
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2
from prefect.exceptions import PrefectHTTPStatusError

from training import errors
from training.checkpoints.writers import Writers
from training.errors import (
    DataError,
    HeldError,
    PeerError,
    ResourceError,
    SettingError,
    TrainingError,
    TransientError,
    classify,
)


def raised_from(outer: BaseException, inner: BaseException) -> BaseException:
    try:
        raise outer from inner
    except type(outer) as error:
        return error


class RayTaskError(Exception):
    """Has the worker's error in `cause`, like Ray's class."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("a task failed")
        self.cause = cause


class WorkerGroupError(Exception):
    """Has one error per rank, like Ray Train's class."""

    def __init__(self, failures: dict[int, BaseException]) -> None:
        super().__init__("workers failed")
        self.worker_failures = failures


class ActorDiedError(Exception):
    """Has the name of Ray's class."""


def test_exit_statuses_differ_and_only_transient_asks_for_a_retry() -> None:
    kinds = [SettingError, DataError, TrainingError, ResourceError, HeldError, TransientError]
    statuses = {kind.exit_status for kind in kinds}
    assert len(statuses | {errors.EXIT_OK, errors.EXIT_BUG, errors.EXIT_INTERRUPTED}) == 9
    assert [kind for kind in kinds if kind.transient] == [TransientError]
    assert TransientError.exit_status == 75


@pytest.mark.parametrize(
    "kind", [SettingError, DataError, TrainingError, ResourceError, TransientError, errors.EvergreenError]
)
def test_a_users_error_is_found_however_it_is_wrapped(kind: type[errors.EvergreenError]) -> None:
    known = kind("message")
    assert classify(known) is known
    assert classify(raised_from(RuntimeError("outside"), known)) is known
    assert classify(RayTaskError(known)) is known
    assert classify(RayTaskError(RayTaskError(raised_from(ValueError("between"), known)))) is known
    assert classify(WorkerGroupError({0: RuntimeError("other rank"), 1: RayTaskError(known)})) is known


def test_context_counts_as_a_cause() -> None:
    def handle_badly() -> None:
        try:
            raise DataError("row 3")
        except DataError:
            raise ValueError("while handling it")  # noqa: B904 - what is tested

    with pytest.raises(ValueError, match="while handling") as caught:
        handle_badly()
    assert str(classify(caught.value)) == "row 3"


def test_a_permanent_error_beats_the_lost_peers_that_it_leaves() -> None:
    lost = RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4711")
    known = classify(WorkerGroupError({0: lost, 1: RayTaskError(TrainingError("loss became nan"))}))
    assert isinstance(known, TrainingError)


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG]
)
def test_what_the_machine_lacks_is_named_with_its_place(number: int) -> None:
    known = classify(raised_from(RuntimeError("outside"), OSError(number, "words", "/data/file")))
    assert isinstance(known, ResourceError)
    assert "/data/file" in str(known)
    assert "run the same command" in str(known)


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's and Ray's classes."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory"),
        RuntimeError("Got the following error when running the callback: MemoryError: <EMPTY MESSAGE>"),
    ],
)
def test_out_of_memory_says_what_to_lower(error: BaseException) -> None:
    known = classify(error)
    assert isinstance(known, ResourceError)
    assert "training.global_batch_size" in str(known)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        TimeoutError("too late"),
        ActorDiedError("gone"),
        RayTaskError(ActorDiedError("gone")),
        RuntimeError("[/pytorch/gloo] Connection reset by peer"),
        RuntimeError(
            "[/pytorch/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 300000ms for recv"
        ),
        RuntimeError("NCCL communicator was aborted"),
    ],
)
def test_what_may_pass_is_transient(error: BaseException) -> None:
    known = classify(error)
    assert isinstance(known, TransientError)
    assert "resumes" in str(known)


def answered(status: int) -> PrefectHTTPStatusError:
    """The error of Prefect's client for an answer with that status."""
    request = httpx.Request(
        "POST", "https://me:secret-word@prefect.example:4200/api/flow_runs/?token=secret-word"
    )
    return PrefectHTTPStatusError(
        f"error '{status}'", request=request, response=httpx.Response(status, request=request)
    )


@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [
        (401, SettingError, "PREFECT_API_AUTH_STRING"),
        (403, SettingError, "PREFECT_API_KEY"),
        (413, ResourceError, "client_max_body_size"),
        (429, TransientError, "resumes"),
        (500, TransientError, "server's log"),
        (507, TransientError, "server's log"),
    ],
)
def test_an_answer_of_prefects_server_is_explained(
    status: int, kind: type[errors.EvergreenError], remedy: str
) -> None:
    known = classify(raised_from(RuntimeError("Failed to reach API"), answered(status)))
    assert type(known) is kind
    assert "https://prefect.example:4200 " in str(known).replace(",", " ")
    assert f"status {status}" in str(known)
    assert remedy in str(known)
    assert "secret-word" not in str(known)


def test_another_version_of_prefects_server_is_a_setting_error() -> None:
    text = "Found incompatible versions: client: 3.8.8, server: 2.20.0. Major versions must match."
    known = classify(RuntimeError(text))
    assert isinstance(known, SettingError)
    assert "server: 2.20.0" in str(known)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (databricks_pb2.PERMISSION_DENIED, SettingError),
        (databricks_pb2.UNAUTHENTICATED, SettingError),
        (databricks_pb2.TEMPORARILY_UNAVAILABLE, TransientError),
        (databricks_pb2.INVALID_PARAMETER_VALUE, type(None)),
    ],
)
def test_an_answer_of_mlflows_server_is_explained(code: int, kind: type[errors.EvergreenError]) -> None:
    known = classify(raised_from(RuntimeError("outside"), MlflowException("Response body: 'no'", code)))
    assert type(known) is kind
    assert kind is not SettingError or "MLFLOW_TRACKING_USERNAME" in str(known)


@pytest.mark.parametrize(
    "text",
    [
        "(psycopg2.errors.ReadOnlySqlTransaction) cannot execute INSERT (https://sqlalche.me/e/20/2j85)",
        "QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00",
    ],
)
def test_a_failure_of_mlflows_database_is_transient_although_its_status_is_400(text: str) -> None:
    known = classify(MlflowException(text, databricks_pb2.BAD_REQUEST))
    assert isinstance(known, TransientError)
    assert "MLflow's database fails" in str(known)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, SettingError),
        (413, ResourceError),
        (429, TransientError),
        (502, TransientError),
        (404, type(None)),
    ],
)
def test_an_answer_to_a_file_that_mlflow_sends_is_explained(
    status: int, kind: type[errors.EvergreenError]
) -> None:
    """MLflow's client sends artifacts by the library requests, and passes its error on."""
    answer = requests.Response()
    answer.status_code, answer.url, answer.reason = status, "http://mlflow.example/api/2.0/model.pt2", "no"
    with pytest.raises(requests.HTTPError) as refused:
        answer.raise_for_status()
    known = classify(raised_from(RuntimeError("outside"), refused.value))
    assert type(known) is kind
    assert known is None or "mlflow.example" in str(known)


@pytest.mark.parametrize(
    "kind",
    [
        httpx.ConnectError,
        httpx.ConnectTimeout,
        httpx.ReadError,
        httpx.WriteTimeout,
        httpx.PoolTimeout,
        httpx.RemoteProtocolError,
    ],
)
def test_a_lost_connection_names_the_server(kind: type[httpx.RequestError]) -> None:
    known = classify(
        kind("gone", request=httpx.Request("GET", "http://me:word@prefect.example:4200/api/health"))
    )
    assert isinstance(known, TransientError)
    assert "(http://prefect.example:4200): gone" in str(known)
    assert isinstance(classify(kind("gone")), TransientError)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("connection reset by peer"),
        answered(404),
        RuntimeError("shapes do not match"),
        KeyError("x"),
        FileNotFoundError(errno.ENOENT, "none"),
        NotImplementedError("timed out"),
    ],
)
def test_a_bug_stays_a_bug(error: BaseException) -> None:
    assert classify(error) is None


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("one"), RayTaskError(KeyError("two"))
    first.__cause__, second.cause = second, first
    assert classify(first) is None
    assert len(list(errors.causes(first))) == 2


def test_a_traceback_inside_a_message_is_cut_down_to_what_was_raised() -> None:
    class WorkerGroupStartupFailedError(RuntimeError):
        """Ray's class is recognised by its name."""

    text = (
        "One of the worker actors failed to initialize due to error:\nTraceback (most recent call last):\n"
        '  File "worker_group.py", line 494, in _create_workers\n    actor_metadatas = ray.get([])\n'
        "ray.exceptions.ActorUnavailableError: The actor is unavailable: rpc_code: 14\n"
    )
    known = classify(WorkerGroupStartupFailedError(text))
    assert isinstance(known, TransientError)
    assert str(known) == (
        "WorkerGroupStartupFailedError: One of the worker actors failed to initialize due to error: "
        "ray.exceptions.ActorUnavailableError: The actor is unavailable: rpc_code: 14. "
        "Run the same command again, which resumes the run."
    )


def test_a_traceback_that_was_cut_short_ends_with_what_was_raised_too() -> None:
    text = (
        'Traceback (most recent call last):\n  File "training/trainers/torch/loop.py", line 115, in run_epoch\n...\n'
        '... (Output truncated. See individual worker logs for full details) ...\nkages/torch/autograd/__init__.py", '
        "line 395, in backward\n    _engine_run_backward(\n"
        "RuntimeError: Got the following error when running the callback: MemoryError: <EMPTY MESSAGE>\n"
    )
    known = classify(RuntimeError(text))
    assert isinstance(known, ResourceError)
    assert str(known) == (
        "Out of memory or disk: RuntimeError: Got the following error when running the callback: MemoryError: "
        "<EMPTY MESSAGE>. Lower training.global_batch_size or scaling.num_workers, or free memory or disk, and run "
        "the same command, which resumes the run."
    )


def test_the_rank_whose_part_of_a_checkpoint_is_missing_explains_the_others() -> None:
    """Also when the error that explains them was raised from the group's error, as by the supervisor."""
    reports = [json.dumps({"result": 0}), json.dumps({"error": "OSError: full"})]
    with pytest.raises(PeerError, match="worker 1 did not write its part") as caught:
        Writers(count=2, exchange=lambda _: reports).share(lambda: 0)
    lost, full = caught.value, OSError(errno.ENOSPC, "full")
    for failures in ({0: lost, 1: full}, {0: full, 1: lost}):
        group = WorkerGroupError({rank: RayTaskError(error) for rank, error in failures.items()})
        assert isinstance(classify(group), ResourceError)
        assert isinstance(classify(raised_from(RuntimeError("between"), group)), ResourceError)
    assert classify(WorkerGroupError({0: RuntimeError("a lost report"), 1: lost})) is lost


@pytest.mark.parametrize("kind", [TrainingError, TransientError, ResourceError, DataError])
def test_an_error_that_is_raised_from_the_group_that_it_explains_is_found_again(
    kind: type[errors.EvergreenError],
) -> None:
    known = kind("message")
    group = WorkerGroupError({0: RayTaskError(known)})
    again = raised_from(known, group)
    assert classify(again) is known
    assert classify(RayTaskError(again)) is known
