"""A table of customers of a phone company, who leave or stay, and the ways in which its export goes wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

COMPLAINTS_FROM = 24  # the night on which the export gets the column `complaints`
Change = Callable[[pd.DataFrame], pd.DataFrame]


def customers(rows: int, seed: int) -> pd.DataFrame:
    """`rows` customers with all columns; the first rows of a longer table with the same seed are the same.

    A customer leaves with a probability that depends on the bill, the time as a customer, the tariff, and above all
    on the complaints.
    """
    columns = []
    for stream in np.random.SeedSequence(seed).spawn(6):
        columns.append(np.random.default_rng(stream).random(rows))
    months = (1 + 119 * columns[0] ** 1.5).round()
    bill = (8 + 60 * columns[1]).round(2)
    tariff = np.array(["basic", "family", "business"])[(3 * columns[2]).astype(int)]
    age = (18 + 62 * columns[3]).round(1)
    complaints = np.floor(6 * columns[4] ** 2)
    score = (
        1.2 * complaints
        - 0.05 * (months - 40)
        + 0.05 * (bill - 38)
        + np.where(tariff == "basic", 1, -0.5)
        - 1.8
    )
    left = columns[5] < 1 / (1 + np.exp(-2 * score))
    return pd.DataFrame(
        {
            "customer": np.arange(100_000, 100_000 + rows),
            "age": age,
            "months": months,
            "bill": bill,
            "tariff": tariff,
            "complaints": complaints,
            "left": np.where(left, "yes", "no"),
        }
    )


def write_export(path: Path, rows: int, seed: int, night: int, change: Change | None) -> None:
    """Write the CSV file of a night: the first `rows` customers, after `change`."""
    table = customers(rows, seed)
    if night < COMPLAINTS_FROM:
        table = table.drop(columns="complaints")
    if change is not None:
        table = change(table)
    table.to_csv(path, index=False)


def bill_in_cents(table: pd.DataFrame) -> pd.DataFrame:
    """The unit of a column is another one."""
    return table.assign(bill=(100 * table["bill"]).round())


def age_rewritten(table: pd.DataFrame) -> pd.DataFrame:
    """Each value of a column changes a little, as an age in days does from day to day."""
    return table.assign(age=(table["age"] + 0.01).round(2))


def months_mostly_empty(table: pd.DataFrame) -> pd.DataFrame:
    """A join lost most values of a column."""
    return table.assign(months=table["months"].where(table["customer"] % 5 < 2))


def months_text(table: pd.DataFrame) -> pd.DataFrame:
    """Some values of a column have got a unit."""
    months = table["months"].astype(int).astype(str)
    return table.assign(months=months.where(table["customer"] % 50 > 0, months + " m"))


def only_who_stayed(table: pd.DataFrame) -> pd.DataFrame:
    """The export has a filter too many: one class is gone."""
    return table[table["left"] == "no"]


def labels_flipped(table: pd.DataFrame) -> pd.DataFrame:
    """Yes and no are exchanged."""
    return table.assign(left=np.where(table["left"] == "yes", "no", "yes"))


def labels_of_the_newest_flipped(table: pd.DataFrame) -> pd.DataFrame:
    """Yes and no are exchanged in the newest third of the rows."""
    newest = np.arange(len(table)) >= 2 * len(table) // 3
    swapped = np.where(table["left"] == "yes", "no", "yes")
    return table.assign(left=np.where(newest, swapped, table["left"]))


def twice(table: pd.DataFrame) -> pd.DataFrame:
    """Some customers are exported twice."""
    return pd.concat([table, table.head(20)])


def without_bill(table: pd.DataFrame) -> pd.DataFrame:
    """A column is gone."""
    return table.drop(columns="bill")


def cut_off(path: Path, share: float) -> None:
    """Keep the first `share` of a file's bytes, as after a full disk; the last line is incomplete."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
