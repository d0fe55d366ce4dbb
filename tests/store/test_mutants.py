"""Files that were changed at random or on purpose are read or refused; nothing else ever comes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import mutations

ROOT = Path(__file__).parents[2]
FOUND = sorted((Path(__file__).parent / "recorded" / "found").glob("*.jsonl"))
SHARDS, FILES, PAGES = 4, 100, 12


def test_the_files_that_mutants_are_made_from_are_fine(tmp_path: Path) -> None:
    for data in mutations.originals():
        (tmp_path / "run.jsonl").write_bytes(data)
        assert mutations.judge(tmp_path / "run.jsonl") == "fine"
        assert mutations.judge_page(tmp_path / "run.jsonl") == "fine"


def test_a_mutant_depends_on_its_seed_alone() -> None:
    original, _ = mutations.originals()
    mutants = [mutations.mutate(original, seed) for seed in range(200)]
    assert mutants == [mutations.mutate(original, seed) for seed in range(200)]
    assert len(set(mutants)) > 150


@pytest.mark.parametrize("shard", range(SHARDS))
def test_mutants_are_read_or_refused(tmp_path: Path, shard: int) -> None:
    path, seen = tmp_path / "run.jsonl", set()
    for seed in range(shard * FILES, (shard + 1) * FILES):
        path.write_bytes(mutations.mutate(mutations.originals()[seed % 2], seed))
        try:
            seen.add(mutations.judge(path))
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    assert seen == {"fine", "refused"}


def test_mutants_are_drawn_ranked_and_gathered_or_refused(tmp_path: Path) -> None:
    path, seen = tmp_path / "run.jsonl", set()
    for seed in range(1, 2 * PAGES, 2):  # of the file that has everything
        path.write_bytes(mutations.mutate(mutations.originals()[1], seed))
        try:
            seen.add(mutations.judge_page(path))
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    assert seen == {"fine", "refused"}


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_stays_harmless(tmp_path: Path, path: Path) -> None:
    copy = tmp_path / "run.jsonl"
    copy.write_bytes(path.read_bytes())
    assert mutations.judge(copy) in ("fine", "refused")
