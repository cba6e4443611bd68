"""The gate: decides whether the candidate is really better than the champion, or only luckier on these test rows.

In: an :class:`Evaluation` (both models on the same rows), the looks (recorded comparisons), and the gate's settings.
Out: a :class:`Verdict` with every rule, its numbers and its outcome. The rules:

floor       accuracy, or R² of a regression, on the test rows reaches `gate.floor`. The floor applies to the measured
            value, not to the lower end of its confidence interval: this is what people mean by "at least 90 %". A
            candidate below the floor is refused without a comparison.
baseline    without a champion: the candidate is better than a model that has learned nothing, such as one that always
            answers the commonest class (:mod:`tasks.gate.baseline`).
better      policy "better": the candidate is more accurate than the champion. The probability that any candidate
            that is not better passes is at most 1 - `gate.confidence` over the champion's whole reign
            (:mod:`tasks.gate.look`). When neither model makes a mistake, log loss is compared instead; the
            candidate's log loss must then also be lower on significantly more rows than it is higher. Of a
            regression: the candidate's mean squared error is lower, by a sign-flip test of the paired squared errors.
not_worse   policy "not_worse": the lower confidence bound of the paired difference in accuracy is above
            -`gate.margin`. The reference is the anchor, the best champion so far, so that small losses do not add up.
class_drop  no class loses more recall than `gate.max_class_drop`, unless the loss is within the noise of its rows.
            Only of a classification.
finite      only listed when a metric of the candidate is NaN or infinite; no other rule is then evaluated.

Without a champion only the rules floor and baseline apply.
"""

from tasks.gate.verdict import (
    asks_for_baseline,
    asks_for_look,
    has_earlier_words,
    has_first_rules,
    judge,
    look_of,
    same_policy,
)

__all__ = [
    "asks_for_baseline",
    "asks_for_look",
    "has_earlier_words",
    "has_first_rules",
    "judge",
    "look_of",
    "same_policy",
]
