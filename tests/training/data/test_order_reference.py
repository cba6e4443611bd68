"""Random numbers compared with a second implementation in Python's own integers."""

import numpy as np

from training.data.sample_order import stream_key, uniforms

_GOLDEN, _ALL = 0x9E3779B97F4A7C15, 2**64 - 1


def mixed(word: int) -> int:
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 & _ALL
    word ^= word >> 27
    word = word * 0x94D049BB133111EB & _ALL
    return word ^ word >> 31


def test_uniforms_of_each_draw_and_row():
    key = int(stream_key(3, 1, 4))
    rows = [0, 1, 2**40]
    wanted = [
        [(mixed((row + mixed((key + _GOLDEN * (draw + 1)) & _ALL)) & _ALL) + key) & _ALL for draw in range(3)]
        for row in rows
    ]
    numbers = np.array([[(mixed(word) >> 40) * 2.0**-24 for word in line] for line in wanted], np.float32)
    assert (uniforms(stream_key(3, 1, 4), np.array(rows), 3) == numbers).all()
