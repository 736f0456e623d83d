"""Log trees and the list of iterations through the run store."""

from typing import Any

import numpy as np
import pytest

from runstore import IterationInfo, MalformedFileError, TrainingRunStore, UnstorableValueError
from tests.stores.helpers import Call, RunFolder

pytestmark = pytest.mark.anyio


async def test_a_log_tree_comes_back(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """One object a file, indented by 2; integers exact, values of any kind readable, text as it was."""
    tree: dict[str, Any] = {"title": "é\u2028\ud83d", "n": 2**70, "np": np.float32(0.5), "children": [{}]}
    await call(store.awrite_logtree, 12, tree)
    await call(store.awrite_logtree, 12, {"a": 1}, "eval_gsm8k")
    assert sorted(run.files()) == [
        "iteration_000012/eval_gsm8k_logtree.json",
        "iteration_000012/train_logtree.json",
    ]
    assert run.get("iteration_000012/eval_gsm8k_logtree.json") == b'{\n  "a": 1\n}'
    assert await call(store.aread_logtree, 12) == tree | {"np": 0.5}
    assert await call(store.aread_logtree, 12, base_name="eval_gsm8k") == {"a": 1}


async def test_a_log_tree_is_replaced_and_read_anew(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """A second write leaves nothing of the first, and each read sees the file as it is."""
    await call(store.awrite_logtree, 12, {"first": 1})
    assert await call(store.aread_logtree, 12) == {"first": 1}
    await call(store.awrite_logtree, 12, {"second": 2})
    assert await call(store.aread_logtree, 12) == {"second": 2}
    run.put("iteration_000012/train_logtree.json", b'{"third": 3}')
    assert await call(store.aread_logtree, 12) == {"third": 3}


async def test_a_missing_log_tree_is_none(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """No file is `None`, and no folder lists none; nothing is created."""
    assert await call(store.aread_logtree, 12) is None
    assert await call(store.alist_logtrees, 12) == []
    assert await call(store.alist_iterations) == []
    assert not run.exists()


async def test_a_malformed_log_tree_names_its_url(
    run: RunFolder, store: TrainingRunStore, call: Call
) -> None:
    """A file that is no JSON object raises `MalformedFileError` with its URL."""
    run.put("iteration_000012/train_logtree.json", b'{"title": ')
    with pytest.raises(MalformedFileError, match="is not valid JSON") as caught:
        await call(store.aread_logtree, 12)
    assert store.url("iteration_000012/train_logtree.json") in str(caught.value)


async def test_a_log_tree_that_holds_itself(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A cycle is named by its key path, and nothing is written."""
    tree: dict[str, Any] = {"children": []}
    tree["children"].append(tree)
    with pytest.raises(UnstorableValueError, match=r"\['children'\]\[0\] holds itself"):
        await call(store.awrite_logtree, 12, tree)
    assert not run.exists()


async def test_log_trees_are_listed_by_base_name(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Base names, sorted; other files of the folder, and files without a base name, are none."""
    for name in (
        "train_logtree.json",
        "eval_gsm8k_logtree.json",
        "_logtree.json",
        "train_logtree.html",
        "train_logtree.json.bak",
        "train_rollout_summaries.jsonl",
    ):
        run.put(f"iteration_000012/{name}", b"{}")
    assert await call(store.alist_logtrees, 12) == ["eval_gsm8k", "train"]
    assert await call(store.alist_logtrees, 13) == []


async def test_iterations_are_listed_by_number(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """By number, also beyond six digits, each with what lies directly in its folder."""
    for name in (
        "iteration_1000000/train_logtree.json",
        "iteration_000012/train_rollout_summaries.jsonl",
        "iteration_000012/eval_math_rollout_summaries.jsonl",
        "iteration_000012/eval_gsm8k_rollout_summaries.jsonl",
        "iteration_000012/eval_gsm8k_logtree.json",
        "iteration_000002/train_rollout_summaries.jsonl",
        "iteration_000002/train_logtree.json",
        "iteration_999999/other.txt",
    ):
        run.put(name, b"")
    assert await call(store.alist_iterations) == [
        IterationInfo(2, has_train_rollouts=True, has_train_logtree=True),
        IterationInfo(12, has_train_rollouts=True, eval_labels=["gsm8k", "math"]),
        IterationInfo(999_999),
        IterationInfo(1_000_000, has_train_logtree=True),
    ]


async def test_an_empty_folder_is_an_iteration(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """A folder counts before the first file is in it; a file of that name does not."""
    run.put("iteration_000001/x", b"").unlink()
    run.put("iteration_000002", b"")
    assert await call(store.alist_iterations) == [IterationInfo(1)]


async def test_odd_names_are_no_iterations(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Names that only look like an iteration's are left out; a number without its zeros is one."""
    for name in (
        "iteration_abc",
        "iteration_",
        "iteration_000001.bak",
        "iteration_-00001",
        "iteration_1e3",
        "iteration_\u0661",
        "old_iteration_000001",
        "Iteration_000001",
        "checkpoints/iteration_000004",
        "iteration_7",
    ):
        run.put(f"{name}/train_rollout_summaries.jsonl", b"")
    assert await call(store.alist_iterations) == [IterationInfo(7, has_train_rollouts=True)]


async def test_eval_labels(run: RunFolder, store: TrainingRunStore, call: Call) -> None:
    """Labels are what stands between `eval_` and the suffix, sorted; nothing between is no label."""
    for name in (
        "eval_b_rollout_summaries.jsonl",
        "eval_aB_rollout_summaries.jsonl",
        "eval_a_rollout_summaries.jsonl",
        "eval_two_words_rollout_summaries.jsonl",
        "eval_rollout_summaries.jsonl",
        "eval__rollout_summaries.jsonl",
        "evaluate_rollout_summaries.jsonl",
        "eval_dir/deep_rollout_summaries.jsonl",
        "deep/train_rollout_summaries.jsonl",
        "deep/train_logtree.json",
    ):
        run.put(f"iteration_000003/{name}", b"")
    (info,) = await call(store.alist_iterations)
    assert info == IterationInfo(3, eval_labels=["a", "aB", "b", "two_words"])


async def test_what_is_written_is_listed(store: TrainingRunStore, call: Call) -> None:
    """Rollouts and log trees written through the store show in the list."""
    await call(store.awrite_logtree, 3, {})
    await call(store.awrite_rollouts, 3, [], "eval_gsm8k")
    await call(store.awrite_rollouts, 4, [])
    assert await call(store.alist_iterations) == [
        IterationInfo(3, has_train_logtree=True, eval_labels=["gsm8k"]),
        IterationInfo(4, has_train_rollouts=True),
    ]


def test_the_labels_of_two_iterations_are_two_lists() -> None:
    """Each info has a list of its own, and the fields have the documented defaults."""
    one, other = IterationInfo(1), IterationInfo(2)
    one.eval_labels.append("a")
    assert other == IterationInfo(2, has_train_rollouts=False, has_train_logtree=False, eval_labels=[])


@pytest.mark.parametrize("tree", [[1, 2], "text", None])
async def test_a_log_tree_is_an_object(
    run: RunFolder, store: TrainingRunStore, call: Call, tree: Any
) -> None:
    """What could not be read back is not written."""
    with pytest.raises(UnstorableValueError, match="a log tree must make a JSON object"):
        await call(store.awrite_logtree, 1, tree)
    assert not run.exists()


async def test_an_iteration_that_is_no_number_is_named(store: TrainingRunStore, call: Call) -> None:
    """The error says which argument is wrong."""
    with pytest.raises(TypeError, match="iteration must be an integer, not '3'"):
        await call(store.awrite_logtree, "3", {})  # type: ignore[arg-type]  # that is the point
