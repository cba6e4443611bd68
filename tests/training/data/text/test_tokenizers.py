"""Tokenizers of text: the same bytes in every process, fixed lengths, and clear refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_texts import sentences

pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
from training.data.text.tokenizers import Encoder, given, train
from training.data.text.tokenizers_found import find_tokenizer
from training.errors import DataError, SettingError

pytestmark = pytest.mark.frameworks
TEXTS = [text for text, _ in sentences(300)]
_TRAIN = """
import json, random, sys
from training.data.text.tokenizers import train
texts = json.loads(sys.stdin.read())
random.Random(int(sys.argv[1])).shuffle(texts)
print(train(texts, 400, 8).digest)
"""


def test_the_bytes_depend_neither_on_the_process_nor_on_threads_nor_on_the_order() -> None:
    digests = {train(TEXTS, 400, 8).digest}
    for threads in ("1", "2", "7"):
        done = subprocess.run(
            [sys.executable, "-c", _TRAIN, threads],
            input=json.dumps(TEXTS),
            env=os.environ | {"RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_rows_are_padded_with_0_or_cut_and_no_text_is_unknown() -> None:
    made = train(TEXTS, 400, 8)
    assert made.padding == 0
    assert made.vocabulary <= 400
    encoded = Encoder(made.content).encode(["film", "\u4f60\U0001f600", TEXTS[0]])
    unknown, first, last = 1, 2, 3
    assert encoded.ids.shape == (3, 8)
    assert encoded.ids[0, 0] == first
    assert encoded.ids[0].tolist().count(0) >= 4
    assert encoded.ids[2, -1] == last
    assert encoded.cut == 2
    assert unknown not in encoded.ids
    assert 0 <= encoded.ids.min() <= encoded.ids.max() < made.vocabulary


def test_the_file_alone_gives_the_ids() -> None:
    from tokenizers import Tokenizer

    made = train(TEXTS, 400, 8)
    alone = Tokenizer.from_str(made.content)
    assert [alone.encode(text).ids for text in TEXTS] == Encoder(made.content).encode(TEXTS).ids.tolist()


def test_a_given_tokenizer_keeps_its_padding_token(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"film": 0, "<pad>": 1, "<unk>": 7}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "own").mkdir()
    words.save(str(tmp_path / "own" / "tokenizer.json"))
    made = given(find_tokenizer(tmp_path / "own"), 4, "own")
    assert (made.vocabulary, made.padding) == (8, 1)
    assert Encoder(made.content).encode(["film film other"]).ids.tolist() == [[0, 0, 7, 1]]


def test_a_tokenizer_without_padding_is_refused() -> None:
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"film": 0}, unk_token="film"))
    with pytest.raises(DataError, match=r"own: has no token that fills up short rows.*add_special_tokens"):
        given(words.to_str(), 4, "own")
    with pytest.raises(DataError, match="own: no tokenizer of the library tokenizers"):
        given("{}", 4, "own")


def test_a_tokenizer_that_can_t_be_found_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no file .*gone.json"):
        find_tokenizer(str(tmp_path / "gone.json"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match=r"no file .*empty/tokenizer.json"):
        find_tokenizer(tmp_path / "empty")
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"bytes.json: is not UTF-8"):
        find_tokenizer(tmp_path / "bytes.json")
