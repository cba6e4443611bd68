"""The gate: is the candidate really better than the champion, or only luckier on these test rows?

In: an :class:`Evaluation` (both models on the same rows), the looks that were taken, and the gate's settings. Out: a
:class:`Verdict` with every rule, its numbers and its outcome. The rules:

floor       accuracy on the test rows reaches `gate.floor`. The accuracy itself is held against the floor, not
            the lower end of its interval: that is what people mean by "at least 90 %". A candidate below is refused
            without a comparison.
better      policy "better": the candidate is more accurate than the champion. The probability that any candidate
            that is not better passes stays at 1 - `gate.confidence` over the champion's whole reign
            (:mod:`tasks.gate.look`). When neither model makes a mistake, log loss is compared instead, and most
            rows have to agree with its mean.
not_worse   policy "not_worse": the lower confidence bound of the paired difference in accuracy is above
            -`gate.margin`. The reference is the anchor, the best champion so far, so that losses do not add up.
class_drop  no class loses more recall than `gate.max_class_drop`, as far as the test rows can tell.
finite      only listed when a metric of the candidate is NaN or infinite: then nothing else counts.

Without a champion only the floor is asked for.
"""

from tasks.gate.verdict import asks_for_look, judge, look_of, same_policy

__all__ = ["asks_for_look", "judge", "look_of", "same_policy"]
