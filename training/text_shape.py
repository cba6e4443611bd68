"""The shape of a row of text, by which a recipe sizes its model."""


class TextShape(tuple[int, ...]):
    """(tokens of a row,), with the numbers that an embedding needs.

    `nn.Embedding(shape.vocabulary, width, padding_idx=shape.padding)`: token ids are from 0 to `vocabulary`, exclusive,
    and `padding` is the id that fills up a short row.
    """

    vocabulary: int
    padding: int

    def __new__(cls, tokens: int, vocabulary: int, padding: int) -> "TextShape":
        """The shape of rows of `tokens` token ids."""
        shape = super().__new__(cls, (tokens,))
        shape.vocabulary, shape.padding = vocabulary, padding
        return shape

    def __getnewargs__(self) -> tuple[int, int, int]:
        return self[0], self.vocabulary, self.padding
