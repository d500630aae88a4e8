"""Which weights are read ahead: the choice, the folders, and the page cache itself."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mm.domain.specs import EngineKind, ModelSpec
from vllm_mm.engine import pagecache
from vllm_mm.engine.readahead import MARGIN, Candidate, WeightFile, choose
from vllm_mm.engine.weights import weight_files

PLENTY = 100 * 2**30
MIB = 2**20


def weights(number: int, size: int = 100, cached: int = 0) -> WeightFile:
    return WeightFile(f"/m/{number}.safetensors", (1, number, size, 0), cached)


def candidate(model: str, *files: WeightFile, **more: object) -> Candidate:
    return Candidate(model, files, **({"last_used": 1.0} | more))  # type: ignore[arg-type]  # the fields' own types


class TestChoice:
    """`choose` is pure."""

    def test_who_waits_comes_first_then_who_is_wanted_then_the_last_used(self) -> None:
        """The order of likelihood decides when the budget does not do for all."""
        choice = choose(
            [
                candidate("old", weights(1), last_used=5.0),
                candidate("recent", weights(2), last_used=9.0),
                candidate("wanted", weights(3), wanted=True, last_used=None),
                candidate("one waits", weights(4), waiting=1),
                candidate("many wait", weights(5), waiting=7),
            ],
            1000, PLENTY,
        )  # fmt: skip
        assert [s.model for s in choice.stretches] == ["many wait", "one waits", "wanted", "recent", "old"]

    def test_a_loaded_model_and_one_that_nobody_ever_used_are_left_alone(self) -> None:
        """There is nothing to be won with the one, and nothing speaks for the other."""
        choice = choose(
            [candidate("loaded", weights(1), loaded=True, waiting=3), candidate("never", weights(2), last_used=None)],
            1000, PLENTY,
        )  # fmt: skip
        assert choice.stretches == ()
        assert choice.kept == frozenset()

    def test_what_does_not_fit_is_read_from_its_beginning(self) -> None:
        """The last model gets what is left of the budget; the ones after it nothing."""
        choice = choose([candidate("a", weights(1), last_used=3.0), candidate("b", weights(2), last_used=2.0),
                         candidate("c", weights(3), last_used=1.0)], 150, PLENTY)  # fmt: skip
        assert [(s.model, s.end, s.missing) for s in choice.stretches] == [("a", 100, 100), ("b", 50, 50)]
        assert choice.kept == {"a", "b"}

    def test_what_is_cached_already_takes_budget_but_is_not_read(self) -> None:
        """The budget bounds what is held, not what is read: otherwise each round would add to it."""
        choice = choose(
            [
                candidate("a", weights(1, cached=100), last_used=3.0),
                candidate("b", weights(2, cached=30), last_used=2.0),
            ],
            150, PLENTY,
        )  # fmt: skip
        assert [(s.model, s.end, s.missing) for s in choice.stretches] == [("b", 50, 20)]
        assert choice.kept == {"a", "b"}

    def test_only_memory_that_holds_nothing_is_filled(self) -> None:
        """Beyond the margin: so nobody's pages are evicted."""
        a = [candidate("a", weights(1))]
        assert choose(a, 1000, MARGIN).stretches == ()
        assert choose(a, 1000, MARGIN + 40).bytes_missing == 40
        assert choose(a, 1000, 0).stretches == ()

    def test_the_same_weights_under_two_names_are_read_once(self) -> None:
        """Hard links, or two declarations of one folder."""
        choice = choose([candidate("a", weights(1)), candidate("b", weights(1))], 1000, PLENTY)
        assert len(choice.stretches) == 1
        assert choice.kept == {"a", "b"}

    @given(
        sizes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200), st.booleans()), max_size=8),
        budget=st.integers(0, 500),
        unused=st.integers(0, 500),
    )
    def test_neither_budget_nor_free_memory_is_ever_exceeded(
        self, sizes: list[tuple[int, int, bool]], budget: int, unused: int
    ) -> None:
        """Whatever the models are like: cached and to be read together stay within the budget, reading within the memory."""
        candidates = [
            candidate(f"m{n}", weights(n, size, min(size, cached)), wanted=wanted)
            for n, (size, cached, wanted) in enumerate(sizes)
        ]
        choice = choose(candidates, budget, MARGIN + unused)
        assert choice.bytes_missing <= unused
        assert sum(s.end for s in choice.stretches) <= budget
        assert all(0 < s.missing <= s.end <= s.file.size for s in choice.stretches)


class TestFolders:
    """`weight_files`: where weights lie, without a question to the network."""

    def test_a_local_folder(self, tmp_path: Path) -> None:
        """All shards in their order, and nothing else of the folder; without shards, the one consolidated file."""
        for name in ("b.safetensors", "a.safetensors", "consolidated.safetensors", "config.json"):
            (tmp_path / name).write_bytes(b"x")
        spec = ModelSpec("m", model=str(tmp_path))
        assert [f.name for f in weight_files(spec, {})] == ["a.safetensors", "b.safetensors"]
        (tmp_path / "a.safetensors").unlink()
        (tmp_path / "b.safetensors").unlink()
        assert [f.name for f in weight_files(spec, {})] == ["consolidated.safetensors"]

    @pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "HOME", "download-dir"])
    def test_the_cache_of_hugging_face(self, tmp_path: Path, variable: str) -> None:
        """The snapshot that a revision names, in each of the places where the cache can be."""
        below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "HOME": ".cache/huggingface/hub", "download-dir": ""}[variable]
        repository = tmp_path / below / "models--org--name"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("abc")
        for commit in ("abc", "def"):
            (repository / "snapshots" / commit).mkdir(parents=True)
            (repository / "snapshots" / commit / f"{commit}.safetensors").write_bytes(b"x")
        args = {"download_dir": str(tmp_path)} if variable == "download-dir" else {}
        environment = {variable: str(tmp_path)}
        spec = ModelSpec("m", model="org/name", args=args)
        assert [f.name for f in weight_files(spec, environment)] == ["abc.safetensors"]
        other = ModelSpec("m", model="org/name", args=args | {"revision": "def"})
        assert [f.name for f in weight_files(other, environment)] == ["def.safetensors"]
        assert weight_files(ModelSpec("m", model="org/other", args=args), environment) == ()

    def test_names_that_are_no_repository_and_other_engines_have_none(self, tmp_path: Path) -> None:
        """No path is made of a name that could lead out of the cache."""
        (tmp_path / "w.safetensors").write_bytes(b"x")
        assert weight_files(ModelSpec("m", model="../../etc"), {"HOME": str(tmp_path)}) == ()
        assert weight_files(ModelSpec("m", EngineKind.SIM, model=str(tmp_path)), {}) == ()


@pytest.fixture
def real_file(tmp_path: Path) -> Path:
    """On a disk, written out, and not cached; skipped where files live in memory only."""
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write(os.urandom(MIB) * 20 + b"tail")
        file.flush()
        os.fsync(file.fileno())
    pagecache.drop(path)
    if pagecache.cached(path) != 0:
        pytest.skip("this file system keeps its files in memory")
    return path


class TestPageCache:
    """Against the real page cache."""

    def test_reading_fills_it_and_dropping_empties_it(self, real_file: Path) -> None:
        """What `cached` tells is what `read` and `drop` did, to the byte for a whole file."""
        size = real_file.stat().st_size
        assert pagecache.read(real_file, 0, size) == size
        assert pagecache.cached(real_file) == size
        assert pagecache.share([real_file]) == 1.0
        pagecache.drop(real_file)
        assert pagecache.cached(real_file) == 0

    def test_a_stretch_is_read_and_told_by_itself(self, real_file: Path) -> None:
        """The system reads a little further by itself; what lies far away stays out."""
        assert pagecache.read(real_file, 0, 4 * MIB) == 4 * MIB
        assert pagecache.cached(real_file, 0, 4 * MIB) == 4 * MIB
        assert pagecache.cached(real_file, 16 * MIB) == 0

    def test_reading_stops_when_it_is_told_to(self, real_file: Path) -> None:
        """`goes_on` is asked before each chunk."""
        answers = iter([True, False])
        assert pagecache.read(real_file, 0, 20 * MIB, lambda: next(answers)) == pagecache.CHUNK

    def test_an_empty_file_has_no_share(self, tmp_path: Path) -> None:
        """Nothing of nothing is no figure."""
        (tmp_path / "e").touch()
        assert pagecache.share([tmp_path / "e"]) is None

    def test_unused_memory_is_a_part_of_the_memory(self) -> None:
        """From /proc/meminfo, in bytes."""
        assert 0 < pagecache.unused_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
