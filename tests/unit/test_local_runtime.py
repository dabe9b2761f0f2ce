"""What the embedded model needs of a machine, told before anything is started."""

from pathlib import Path

import pytest

from antiphon.backends.local import ModelError
from antiphon.backends.local.machine import CPU_FLAGS, Machine, check_model_file, count_cores, find_missing
from antiphon.backends.local.runtime import LocalRuntime, RuntimeSettings


def make_machine(folder: Path, flags: tuple[str, ...] = CPU_FLAGS, **changes: object) -> Machine:
    """A Linux machine that has everything but what is changed."""
    path = folder / "cpuinfo"
    path.write_text(
        f"processor\t: 0\nflags\t\t: fpu {' '.join(flags)} sse2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    )
    facts = {
        "system": "linux",
        "processor": "x86_64",
        "cpu_info": path,
        "cpu_folder": folder,
        "load_library": lambda name: name,
        "find_package": lambda name: name,
        **changes,
    }
    return Machine(**facts)  # type: ignore[arg-type]


def fail_to_load(name: str) -> object:
    """As the loader of a system without the library."""
    raise OSError(f"{name}: cannot open shared object file")


def test_a_machine_with_everything_misses_nothing(tmp_path: Path) -> None:
    """Ours."""
    assert find_missing(make_machine(tmp_path)) is None


@pytest.mark.parametrize("flag", CPU_FLAGS)
def test_a_processor_without_an_instruction_is_told_which_and_what_to_do(tmp_path: Path, flag: str) -> None:
    """Ours: without the look the runtime ends by an illegal instruction."""
    told = find_missing(make_machine(tmp_path, tuple(each for each in CPU_FLAGS if each != flag)))
    assert told is not None
    assert f"no {flag}," in told
    assert "--upstream" in told


@pytest.mark.parametrize(
    ("system", "processor"), [("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")]
)
def test_other_processors_are_not_asked_for_instructions(tmp_path: Path, system: str, processor: str) -> None:
    """Ours: their wheels ask for nothing beyond what all of them have."""
    assert find_missing(make_machine(tmp_path, (), system=system, processor=processor)) is None


def test_a_processor_that_tells_nothing_is_tried(tmp_path: Path) -> None:
    """Ours: some containers hide /proc/cpuinfo."""
    assert find_missing(make_machine(tmp_path, cpu_info=tmp_path / "none")) is None


def test_a_missing_library_is_told_with_the_package_that_has_it(tmp_path: Path) -> None:
    """Ours: slim images lack OpenMP's library; the import error does not say where to get it."""
    told = find_missing(make_machine(tmp_path, load_library=fail_to_load))
    assert told is not None
    assert "libgomp.so.1" in told
    assert "apt-get install libgomp1" in told
    assert find_missing(make_machine(tmp_path, system="darwin", load_library=fail_to_load)) is None


def test_a_missing_runtime_is_told_with_the_extra_that_has_it(tmp_path: Path) -> None:
    """Ours."""
    told = find_missing(make_machine(tmp_path, find_package=lambda name: None, load_library=fail_to_load))
    assert told is not None
    assert "pip install 'xllamacpp>=2026.10.11549,<2027'" in told


def test_halves_of_a_core_count_once(tmp_path: Path) -> None:
    """Ours: threads on both halves of one core make a model slower."""
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert count_cores(make_machine(tmp_path, processors=frozenset(range(4)))) == 2
    assert count_cores(make_machine(tmp_path, processors=frozenset({0, 2}))) == 1


def test_a_machine_that_hides_its_cores_counts_processors(tmp_path: Path) -> None:
    """Ours: what may be used, not what there is."""
    assert count_cores(make_machine(tmp_path, processors=frozenset({1, 5, 7}))) == 3


def test_each_runtime_has_a_key_of_its_own_and_listens_on_loopback_alone(tmp_path: Path) -> None:
    """Ours: other users of the machine may connect to the port, and get nothing."""
    settings = RuntimeSettings(name="m", model=tmp_path / "m.gguf")
    one, other = LocalRuntime(settings), LocalRuntime(settings)
    assert one.url.startswith("http://127.0.0.1:")
    assert one.key != other.key
    assert len(one.key) >= 32


@pytest.mark.parametrize("content", [b"", b"GG", b"<html>", b"not a model"])
def test_a_file_that_is_no_model_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    """Ours: the runtime would only print its log."""
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is no GGUF file, or not a whole one"):
        check_model_file(path)


def test_a_file_that_begins_like_a_model_is_left_to_the_runtime(tmp_path: Path) -> None:
    """Ours: what is behind the first bytes only the runtime can judge."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF and more")
    check_model_file(path)
