"""Write numbers with their nouns in messages for people."""


def counted(number: int, noun: str, several: str = "") -> str:
    """A number with its noun, such as "1 byte" or "1,024 bytes"; `several` is the plural, if irregular."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
