"""The recipe file that is found, hashed, copied and executed is always the same text."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from small_runs import write_recipe

from training.code_closure import source_digest
from training.errors import SettingError
from training.recipe import BUILT_IN, load, reload, reload_once
from training.recipe_copy import changed_files, check_copy, keep_copy

RECIPE = """
from training.recipe import Recipe
from training.data.sources.digits import Digits
{imports}

recipe = Recipe("mine", {summary}, Digits(), build_model=lambda shape, classes: {model})
"""


def write(folder: Path, imports: str = "", summary: str = "'a test'", model: str = "None") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "mine.py"
    file.write_text(RECIPE.format(imports=imports, summary=summary, model=model))
    return str(file)


def test_a_built_in_recipe_is_found_by_its_name() -> None:
    recipe, ref = load("digits")
    assert (recipe.name, ref.name, Path(ref.path).name) == ("digits", "digits", "digits.py")
    assert ref.files == (ref.path,)
    assert load("digits")[1] == ref


def test_an_unknown_name_is_answered_with_all_names() -> None:
    with pytest.raises(SettingError) as caught:
        load("digitz")
    assert all(name in str(caught.value) for name in ("digitz", *BUILT_IN))


def test_a_path_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(SettingError, match=r"recipe: ~no-such-user-here/mine.py: .* Write the whole path"):
        load("~no-such-user-here/mine.py")


def test_a_path_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    recipe, ref = load("here/mine.py")
    assert (recipe.name, ref.path) == ("mine", path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must define `recipe = Recipe"),
        ("recipe = 3", "must define `recipe = Recipe"),
        ("1 / 0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("from evergreen import TrainingSettings\nTrainingSettings(epochs=0)", "epochs"),
        ("import beside", "SyntaxError"),
        ("def later():\n    import beside", "SyntaxError"),
    ],
)
def test_a_broken_file_is_named_with_its_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "beside.py").write_text("def broken(:")
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(SettingError) as caught:
        load(str(file))
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"{tmp_path}/none.py: no such file"):
        load(str(tmp_path / "none.py"))


def test_files_beside_a_recipe_belong_to_it(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").write_text("from layers.deep import WORD\n")
    (tmp_path / "layers" / "deep.py").write_text("import depths\nWORD = depths.WORD\n")
    (tmp_path / "depths.py").write_text("WORD = 'found'\n")
    (tmp_path / "stranger.py").write_text("WORD = 'not imported'\n")
    path = write(tmp_path, "import layers", "layers.WORD")
    recipe, ref = load(path)
    assert recipe.summary == "found"
    names = {str(Path(file).relative_to(tmp_path)) for file in ref.files}
    assert names == {"mine.py", "depths.py", "layers/__init__.py", "layers/deep.py"}


@pytest.mark.parametrize("near", [False, True])
def test_a_helper_may_be_a_link_to_a_file_elsewhere(tmp_path: Path, near: bool) -> None:
    for name in ("mine", "shared"):
        (tmp_path / name).mkdir()
    (tmp_path / "shared" / "linked.py").write_text("WORD = 'found'\n")
    (tmp_path / "mine" / "linked.py").symlink_to(tmp_path / "shared" / "linked.py")
    (tmp_path / "mine" / "near.py").write_text("")
    path = write(tmp_path / "mine", "import linked" + ("\nimport near" if near else ""), "linked.WORD")
    recipe, ref = load(path)
    assert recipe.summary == "found"
    keep_copy(ref, tmp_path / "run")
    (tmp_path / "shared" / "linked.py").unlink()
    assert reload(ref, tmp_path / "run").summary == "found"


def test_a_folder_of_helpers_needs_no_init_file(tmp_path: Path) -> None:
    deep = tmp_path / "layers" / "inner" / "deep.py"
    deep.parent.mkdir(parents=True)
    deep.write_text("WORD = 'one'\n")
    path = write(tmp_path, "from layers.inner.deep import WORD", "WORD")
    first, before = load(path)
    assert str(deep) in before.files
    deep.write_text("WORD = 'one hundred'\n")
    second, after = load(path)
    assert (first.summary, second.summary) == ("one", "one hundred")
    assert before.digest != after.digest
    keep_copy(after, tmp_path / "run")
    deep.unlink()
    assert reload(after, tmp_path / "run").summary == "one hundred"


def test_a_folder_that_has_the_name_of_a_library_is_not_the_recipe_s(tmp_path: Path) -> None:
    for name in ("numpy", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.py").write_text("raise SystemExit")
    path = write(tmp_path, "import json, numpy", "json.dumps(numpy.e)")
    assert load(path)[1].files == (path,)


@pytest.mark.parametrize(
    "imports", ["from lib.stats import WORD", "from . import stats", "from lib import stats", "import beside"]
)
def test_what_a_function_in_a_package_imports_belongs_to_the_dataset(tmp_path: Path, imports: str) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    rows = lib / "rows.py"
    rows.write_text(f"{imports}\n\ndef transform_rows(images):\n    return images\n")
    for file in (lib / "__init__.py", lib / "stats.py", tmp_path / "beside.py"):
        file.write_text("WORD = 'one'\n")
    path = write(tmp_path, "from lib.rows import transform_rows", model="None, transform_rows=transform_rows")
    first = load(path)[1]
    used = tmp_path / "beside.py" if imports == "import beside" else lib / "stats.py"
    used.write_text("WORD = 'one hundred'\n")
    second = load(path)[1]
    assert second.digest != first.digest
    assert second.transform != first.transform
    Path(path).write_text(Path(path).read_text() + "UNRELATED = 1\n")
    assert load(path)[1].transform == second.transform


@pytest.mark.parametrize("changed", ["mine.py", "beside.py"])
def test_any_of_its_files_changes_the_digest(tmp_path: Path, changed: str) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'one'\n")
    path = write(tmp_path, "import beside", "beside.WORD")
    before = load(path)[1].digest
    with (tmp_path / changed).open("a") as out:
        out.write("MORE = 1\n")
    assert load(path)[1].digest != before


def test_place_and_strangers_do_not_change_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "beside.py").write_text("WORD = 'one'\n")
    path = write(tmp_path / "a", "import beside", "beside.WORD")
    before = load(path)[1].digest
    shutil.copytree(tmp_path / "a", tmp_path / "z" / "deeper")
    (tmp_path / "a" / "stranger.py").write_text("WORD = 'nobody imports it'\n")
    assert load(path)[1].digest == before
    assert load(str(tmp_path / "z" / "deeper" / "mine.py"))[1].digest == before


def test_two_recipes_may_have_files_of_the_same_name_beside_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside.py").write_text(f"WORD = 'of {name}'\n")
    paths = [write(tmp_path / name, "import beside", "beside.WORD") for name in ("a", "b")]
    assert [load(path)[0].summary for path in (*paths, paths[0])] == ["of a", "of b", "of a"]


def test_an_edited_file_is_executed_as_it_is_hashed(tmp_path: Path) -> None:
    beside = tmp_path / "beside.py"
    beside.write_text("WORD = 'one'\n")
    path = write(tmp_path, "import beside", "beside.WORD")
    first, before = load(path)
    beside.write_text("WORD = 'one hundred'\n")
    second, after = load(path)
    assert (first.summary, second.summary) == ("one", "one hundred")
    assert before.digest != after.digest


def test_build_model_may_import_a_file_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def build(shape, classes):\n    return (shape, classes)\n")
    path = write(tmp_path, model="__import__('beside').build(shape, classes)")
    text = Path(path).read_text() + "def mention():\n    import beside\n"
    Path(path).write_text(text)
    recipe, ref = load(path)
    assert len(ref.files) == 2
    assert recipe.build_model((1, 8, 8), 10) == ((1, 8, 8), 10)


def test_a_run_executes_the_copy_that_it_keeps(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    beside = tmp_path / "own" / "beside.py"
    beside.write_text("WORD = 'as hashed'\n")
    _, ref = load(write(tmp_path / "own", "import beside", "beside.WORD"))
    copy = tmp_path / "copy"
    keep_copy(ref, copy)
    beside.write_text("WORD = 'edited since'\n")
    assert reload(ref, copy).summary == "as hashed"
    keep_copy(ref, copy)
    assert reload(ref, copy).summary == "as hashed"


def test_a_changed_copy_is_refused(tmp_path: Path) -> None:
    _, ref = load(write_recipe(tmp_path / "own"))
    keep_copy(ref, tmp_path / "copy")
    with (tmp_path / "copy" / "plain.py").open("a") as out:
        out.write("changed = True\n")
    with pytest.raises(SettingError, match=f"{tmp_path}/copy"):
        reload(ref, tmp_path / "copy")


def test_a_copy_whose_every_byte_was_hashed_is_known_as_unchanged(tmp_path: Path) -> None:
    """Versions of Evergreen before 2026-11-22 hashed comments and layout, too."""
    _, ref = load(write_recipe(tmp_path / "own"))
    copy = tmp_path / "copy"
    keep_copy(ref, copy)
    (file,) = copy.iterdir()
    content = file.read_bytes()
    earlier = hashlib.sha256(f"{file.name} {len(content)}\n".encode() + content).hexdigest()
    older = ref.model_copy(update={"digest": earlier})
    assert check_copy(older, copy) == [file]
    file.write_bytes(content + b"# a comment\n")
    assert check_copy(ref, copy) == [file]
    with pytest.raises(SettingError, match="was changed"):
        check_copy(older, copy)


WITH_FILE = """
from pathlib import Path
from training.recipe import Recipe
from training.data.sources.digits import Digits

def build_model(shape, classes):
    return (Path(__file__).parent / "names.txt").read_text()

recipe = Recipe("named", "reads a file", Digits(), build_model=build_model, files=({files}))
"""


def test_a_file_that_the_model_reads_goes_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("one")
    recipe = tmp_path / "named.py"
    recipe.write_text(WITH_FILE.format(files='"names.txt",'))
    _, ref = load(str(recipe))
    keep_copy(ref, tmp_path / "copy")
    (tmp_path / "names.txt").write_text("two")
    assert reload(ref, tmp_path / "copy").build_model((1, 8, 8), 10) == "one"
    assert load(str(recipe))[1].digest != ref.digest


def test_files_of_one_name_that_change_places_change_the_digest(tmp_path: Path) -> None:
    for folder, word in (("one", "1"), ("two", "2")):
        (tmp_path / "words" / folder).mkdir(parents=True)
        (tmp_path / "words" / folder / "__init__.py").write_text(f"WORD = {word!r}\n")
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "names.txt").write_text(word)
    (tmp_path / "words" / "__init__.py").touch()
    recipe = tmp_path / "named.py"
    files = '"one/names.txt", "two/names.txt"'
    recipe.write_text(f"import words\n{WITH_FILE.format(files=files)}")
    _, ref = load(str(recipe))
    keep_copy(ref, tmp_path / "copy")
    digests = [ref.digest]
    for root in (tmp_path, tmp_path / "words"):
        (root / "one").rename(root / "three")
        (root / "two").rename(root / "one")
        (root / "three").rename(root / "two")
        digests.append(load(str(recipe))[1].digest)
        assert changed_files(ref, tmp_path / "copy")
    assert len(set(digests)) == 3
    check_copy(ref, tmp_path / "copy")
    with pytest.raises(SettingError, match="was changed while its run was prepared"):
        keep_copy(ref, tmp_path / "late")


def test_a_copy_whose_folders_were_not_hashed_is_known_as_unchanged(tmp_path: Path) -> None:
    """Versions of Evergreen before 2026-11-25 hashed the names of files alone."""
    (tmp_path / "own" / "sub").mkdir(parents=True)
    (tmp_path / "own" / "sub" / "names.txt").write_text("one")
    recipe = tmp_path / "own" / "named.py"
    recipe.write_text(WITH_FILE.format(files='"sub/names.txt",'))
    _, ref = load(str(recipe))
    keep_copy(ref, tmp_path / "copy")
    contents = {"named.py": source_digest(recipe.read_text()).encode(), "names.txt": b"one"}
    hashed = b"".join(f"{name} {len(content)}\n".encode() + content for name, content in contents.items())
    older = ref.model_copy(update={"digest": hashlib.sha256(hashed).hexdigest()})
    assert older.digest != ref.digest
    check_copy(older, tmp_path / "copy")
    (tmp_path / "copy" / "sub" / "names.txt").write_text("two")
    with pytest.raises(SettingError, match="was changed"):
        check_copy(older, tmp_path / "copy")


@pytest.mark.parametrize(
    ("files", "said"),
    [('"gone.txt",', "which does not exist"), ('"../outside.txt",', "outside the recipe's folder")],
)
def test_files_that_can_not_be_kept_are_refused(tmp_path: Path, files: str, said: str) -> None:
    (tmp_path / "outside.txt").write_text("")
    (tmp_path / "own").mkdir()
    recipe = tmp_path / "own" / "named.py"
    recipe.write_text(WITH_FILE.format(files=files))
    with pytest.raises(SettingError, match=said):
        load(str(recipe))


def test_a_recipe_that_changes_while_its_run_is_prepared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("one")
    recipe = tmp_path / "named.py"
    recipe.write_text(WITH_FILE.format(files='"names.txt",'))
    _, ref = load(str(recipe))
    (tmp_path / "names.txt").write_text("two")
    with pytest.raises(SettingError, match="changed while its run was prepared"):
        keep_copy(ref, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_module_that_is_imported_from_evergreen_s_recipes_counts(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "own", "from training.recipes import mnist"))
    assert "mnist.py" in {Path(file).name for file in load(str(path))[1].files}


def test_a_run_s_copy_is_executed_once_unless_its_global_variables_must_be_new(tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    path = write(tmp_path / "own", f"open({str(executed)!r}, 'a').write('x')")
    _, ref = load(path)
    keep_copy(ref, tmp_path / "copy")
    assert reload_once(ref, tmp_path / "copy") is reload_once(ref, tmp_path / "copy")
    assert executed.read_text() == "xx"  # when loaded, and the copy
    assert reload(ref, tmp_path / "copy") is not reload_once(ref, tmp_path / "copy")
    assert executed.read_text() == "xxx"


@pytest.mark.extended
def test_a_helper_of_a_run_s_copy_is_imported_once(tmp_path: Path) -> None:
    path = Path(
        write(tmp_path / "own", "import shapes\ndef build_again():\n    import shapes\n    return shapes\n")
    )
    (path.parent / "shapes.py").write_text("class Shape: pass\n")
    _, ref = load(str(path))
    keep_copy(ref, tmp_path / "copy")
    first = reload_once(ref, tmp_path / "copy")
    module = sys.modules[first.build_model.__module__]
    load(str(path))  # the helper of the original takes the name
    again = reload_once(ref, tmp_path / "copy")
    assert again is first
    assert module.build_again().Shape.__module__ == "shapes"
    assert Path(module.build_again().__file__).is_relative_to(tmp_path / "copy")
    kept = module.build_again()
    reload_once(ref, tmp_path / "copy")
    assert module.build_again() is kept


def test_what_a_recipe_takes_from_another_counts() -> None:
    _, ref = load("fashion-mnist")
    assert [Path(file).name for file in ref.files] == ["fashion_mnist.py", "mnist.py"]


def test_a_process_executes_a_recipe_once_until_its_code_or_files_change(tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    line = f"open({str(executed)!r}, 'a').write('x')"
    path = Path(write(tmp_path / "own", line))
    path.write_text(path.read_text().replace("Digits(), ", "Digits(), files=('names.txt',), "))
    names = path.parent / "names.txt"
    names.write_text("one")

    def executions() -> int:
        load(str(path))
        return len(executed.read_text())

    assert executions() == executions() == 1
    path.write_text(path.read_text() + "# a comment\n")
    assert executions() == 1
    names.write_text("two")
    assert executions() == 2
    path.write_text(path.read_text() + "more = 1\n")
    assert executions() == 3


def test_an_edit_of_the_same_length_in_the_same_second_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes bytecode as current if size and whole second of change of the source are the same."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    helper = tmp_path / "own" / "rates.py"
    for number in (1, 2):
        path = Path(write(tmp_path / "own", "import rates", f"f'{number}{{rates.RATE}}'"))
        helper.write_text(f"RATE = {number}\n")
        for file in (path, helper):
            os.utime(file, (1_700_000_000, 1_700_000_000))
        assert load(str(path))[0].summary == f"{number}{number}"


def test_a_recipe_that_loads_another_recipe_is_refused(tmp_path: Path) -> None:
    """The run key of the outer recipe would miss changes of the other."""
    other = write(tmp_path / "other")
    imports = f"from evergreen import load_recipe\nload_recipe({other!r})"
    path = write(tmp_path / "own", imports)
    with pytest.raises(SettingError, match=rf"{path}: the file loads the recipe {other} while it is loaded"):
        load(path)
    assert load(other)[0].name == "mine"


@pytest.mark.parametrize("change", ["another version", "gone", "another place"])
def test_a_copy_outlives_the_version_of_evergreen_that_made_it(tmp_path: Path, change: str) -> None:
    """The recipe uses one of Evergreen's own files, which an upgrade replaces and the copy does not have."""
    _, ref = load(write(tmp_path / "own", "from training.recipes import mnist"))
    copy = tmp_path / "copy"
    keep_copy(ref, copy)
    own = tmp_path / "elsewhere" / "training" / "recipes" / ("mnist.py" if change != "gone" else "gone.py")
    files = tuple(file if file == ref.path else str(own) for file in ref.files)
    older = ref.model_copy(update={"files": files})
    if change == "another version":
        older = older.model_copy(update={"digest": "0" * 64})
    if change == "another place":
        assert len(check_copy(older, copy)) == 2
        return
    with pytest.raises(SettingError, match="the copy kept with the run is as it was, but it uses"):
        reload(older, copy)
    assert reload(older, copy, any_version=True).name == "mine"
    (copy / "mine.py").write_text("changed = True\n")
    with pytest.raises(SettingError, match="was changed"):
        reload(older, copy, any_version=True)
