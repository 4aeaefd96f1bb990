"""Where ours differs from stock on purpose: what stock was seen to do, and so what ours does.

Each function takes what stock was seen to do and returns what ours must be seen to do instead, or
makes such a function. docs/compatibility.md has the reasons for users. That offsets are virtual is
in `tests.helpers.both`, for it is so everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Difference = Callable[[Any], Any]


def says_why(reasons: Mapping[str, str]) -> Difference:
    """Stock's error and text, and behind it the reason, which stock keeps for itself."""

    def change(outcomes: dict[str, Any]) -> dict[str, Any]:
        changed = dict(outcomes)
        for name, reason in reasons.items():
            what, error = outcomes[name]
            assert what == "raised"
            # An exception of Python's ends with its text, Kafka's with text and flags.
            place = 2 if error[0] == "KafkaException" else 1
            changed[name] = (what, (*error[:place], error[place] + reason, *error[place + 1 :]))
        return changed

    return change


def instead(outcomes_of_ours: Mapping[str, Any]) -> Difference:
    """Other outcomes for some calls; the comment beside them says why."""

    def change(outcomes: dict[str, Any]) -> dict[str, Any]:
        assert outcomes_of_ours.keys() <= outcomes.keys()
        for name, outcome in outcomes_of_ours.items():
            assert outcomes[name] != outcome, f"{name}: no difference any more"
        return {**outcomes, **outcomes_of_ours}

    return change
