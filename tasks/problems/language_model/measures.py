"""The measure by which looks compare language models: the loss per token."""

import math
from collections.abc import Mapping

from tasks.gate.measures import Array, NotWorse
from tasks.gate.needed import critical
from tasks.gate.wording import p_value
from tasks.problems.regression.measures import rows_needed
from tasks.report_page import wording
from training.data.sources.wording import counted
from training.problems.language_model import shown
from training.records import Look, Verdict

MEASURE = "next_token_loss"


class LossPerToken:
    """The loss per token in nats; see :class:`tasks.gate.measures.MeasureOfLook`."""

    def compared(self, look: Look) -> str:
        """Both perplexities, and the numbers of texts to which each of the models gives the greater probability."""
        other = "champion" if look.question == "better" else "reference"
        return (
            f"perplexity {_perplexity(_loss(look))} against {_perplexity(look.reference_error)} of the {other}; the "
            f"candidate's loss is lower on {counted(look.gained, 'text')}, higher on {look.lost:,}"
        )

    def would_need(self, look: Look) -> str:
        """The perplexity that would pass, and the number of texts on which the measured one would pass."""
        most, rows = loss_needed(look), rows_needed(look)
        if most is None:
            text = f". No perplexity would be shown to be better on these {look.rows:,} texts: test on more"
        else:
            text = (
                f". Needed is a perplexity of at most some {_perplexity(most)} on these {look.rows:,} texts"
            )
        if rows is not None:
            text += f"; a true perplexity of {_perplexity(_loss(look))} takes some {rows:,} test texts"
        return text

    def not_worse(self, look: Look) -> NotWorse:
        """A look passes if its statistic exceeds the limit: the loss grew by less than the share `gate.margin`."""
        z, margin = critical(look), look.margin
        value, limit = (look.p, look.level) if z is None else (look.statistic, z)
        grown = (
            f"{-100 * look.difference / look.reference_error:+.2f} %" if look.reference_error else "from 0"
        )
        changed = (
            f"the loss per token changes by {grown}, {100 * margin:+.2f} % allowed: {p_value(look.p)}, "
            f"z = {look.statistic:.2f}"
        )
        remedy = ""
        if z is not None and (needed := rows_needed(look)) is not None:
            remedy = f". Some {needed:,} test texts could show it, if the true change is the measured one"
        elif z is not None and margin * look.reference_error <= z * look.standard_error:
            remedy = f". {look.rows:,} texts can't show so little: test on more texts or raise gate.margin"
        return NotWorse(value, limit, changed, remedy)

    def facts(self, look: Look, verdict: Verdict) -> list[tuple[str, str]]:
        """The measured and the needed perplexity."""
        del verdict
        facts = [
            ("Measured perplexity", f"{_perplexity(_loss(look))} against {_perplexity(look.reference_error)}")
        ]
        if look.passed:
            return facts
        most = loss_needed(look)
        if look.question == "better" and most is not None:
            facts.append(("Perplexity needed on these texts", f"at most {_perplexity(most)}"))
        rows = rows_needed(look)
        return facts if rows is None else [*facts, wording.rows_fact(rows)]

    def recounted(
        self, look: Look, labels: Array, columns: Mapping[str, Array], other: str
    ) -> dict[str, tuple[float, float]]:
        """The reference's loss per token, the difference, and the texts on which each model has the lower loss."""
        ours, theirs = (columns[name] / labels.mean() for name in ("candidate", other))
        return {
            "loss per token": (look.reference_error, float(theirs.mean())),
            "difference": (look.difference, float((theirs - ours).mean())),
            "texts with lower loss": (look.gained, int((ours < theirs).sum())),
            "texts with higher loss": (look.lost, int((ours > theirs).sum())),
        }


def _loss(look: Look) -> float:
    """The candidate's loss per token."""
    return max(0.0, look.reference_error - look.difference)


def _perplexity(loss: float) -> str:
    return shown(math.exp(min(loss, 700.0)))


def loss_needed(look: Look) -> float | None:
    """Largest loss per token that passes on these texts with the same standard error; None when none passes."""
    z = critical(look)
    if z is None:
        return None
    most = (1 + look.margin) * look.reference_error - z * look.standard_error
    return most if most > 0 else None
