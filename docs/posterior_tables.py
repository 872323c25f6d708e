"""The posteriors as tables of the manual: figures by group, the default's rows, the hard ones."""

from __future__ import annotations

from typing import Any

from markdown import as_table

Row = dict[str, Any]
OURS, NUTS = "curvi", "NumPyro NUTS"


def posteriors_table(result: Row) -> str:
    """Everything that the page shows of the posteriors."""
    parts = []
    for group, heads in result["headlines"].items():
        if heads:
            parts += [f"*{group[0].upper()}{group[1:]}*", headlines(heads)]
    parts += ["curvi with nothing chosen, every posterior:", own_rows(result)]
    hard = [name for name in result["hard"] if name in result["rows"]]
    if hard:
        names = ", ".join(name.split("-", maxsplit=1)[1] for name in hard)
        parts += [f"The hard posteriors ({names}), every method:", hard_rows(result, hard)]
    mean, (low, high) = result["right"]["mean"], result["right"]["sd"]
    parts.append(
        f"Right: every mean within {mean} sd of its reference and every ratio of sds within {low} "
        f"to {high}. Not right and without a warning, of curvi: "
        f"{', '.join(result['silent']) or 'none'}."
    )
    return "\n\n".join([*parts, origins(result)])


def origins(result: Row) -> str:
    """At which commits the rows of each contender were measured, and when."""
    found: dict[str, set[str]] = {}
    for contenders in result["rows"].values():
        for who, row in contenders.items():
            found.setdefault(who, set()).add(f"{row['commit'][:10]} on {row['date']}")
    listed = (f"{who} at {' and '.join(sorted(places))}" for who, places in found.items())
    return f"Rows were measured by commit: {'; '.join(listed)}."


def widely_measured(result: Row) -> list[str]:
    """Contenders on more than half of the posteriors; medians over a few hard ones say another."""
    rows = result["rows"].values()
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if 2 * sum(name in row for row in rows) > len(rows)]


def headlines(heads: dict[str, Row]) -> str:
    """Counts and medians of every contender over one group of posteriors."""
    return as_table(
        [
            {
                "method": who,
                "posteriors": head["models"],
                "right": head["right"],
                "wrong without a warning": head["silent"],
                "median mean error [sd]": _number(head["mean_error"]),
                "of the worst parameter": _number(head["worst_mean_error"]),
                "median sd error": _percent(head["sd_error"]),
                "seconds, first / second call": f"{_number(head['seconds'])} / "
                f"{_number(head['seconds_warm'])}",
                "of it compilation": f"{_number(head.get('compiling'))} / "
                f"{_number(head.get('compiling_warm'))}",
                "cold share of NUTS, median / most": f"{_number(head['median_of_nuts'])} / "
                f"{_number(head['most_of_nuts'])}",
                "warm share": f"{_number(head.get('median_of_nuts_warm'))} / "
                f"{_number(head.get('most_of_nuts_warm'))}",
            }
            for who, head in sorted(heads.items(), key=lambda item: -item[1]["right"])
        ]
    )


def own_rows(result: Row) -> str:
    """The default on every posterior, with the time beside that of NUTS."""
    rows = [
        {"posterior": name.split("-", maxsplit=1)[-1]} | _cells(found[OURS], found.get(NUTS, {}))
        for name, found in result["rows"].items()
        if OURS in found
    ]
    return as_table(rows) if rows else "none measured yet"


def hard_rows(result: Row, names: list[str]) -> str:
    """Every contender on the posteriors that are called hard."""
    return as_table(
        [
            {"posterior": name.split("-", maxsplit=1)[1], "method": who} | _cells(row)
            for name in names
            for who, row in result["rows"][name].items()
        ]
    )


def _share(row: Row, nuts: Row) -> str:
    """The share of a first call; at most that of its limit where NUTS did not end within it."""
    ended = nuts.get("mean_error") is not None or nuts.get("commit") != row["commit"]
    if row.get("of_nuts") is None and nuts and not ended and "seconds" in row:
        return f"at most {_number(row['seconds'] / nuts['limit'])} (NUTS did not end in time)"
    return _number(row.get("of_nuts"))


def _cells(row: Row, nuts: Row | None = None) -> Row:
    answer = row.get("mean_error") is not None
    said = "flagged" if row.get("flagged") else "no warning"
    word = "right" if row.get("right") else "wrong"
    if not answer:
        word, said = "no answer", str(row.get("failed", "not finite")).replace("|", "/")[:60]
    return {
        "worst mean error [sd]": _number(row.get("mean_error")),
        "sd ratios": f"{row['sd_low']:.2f} to {row['sd_high']:.2f}" if answer else "none",
        "verdict": f"{word}, {said}",
        "seconds, first / second call": f"{_number(row.get('seconds'))} / "
        f"{_number(row.get('seconds_warm'))}",
        "of it compilation": f"{_number(row.get('compiling'))} / "
        f"{_number(row.get('compiling_warm'))}",
        "share of NUTS, cold / warm": f"{_share(row, nuts or {})} / "
        f"{_number(row.get('of_nuts_warm'))}",
    }


def readme_table(result: Row) -> str:
    """Every contender, samplers too: what it gets right, and what it gets wrong without a word."""
    groups = {name: heads for name, heads in result["headlines"].items() if OURS in heads}
    names = {who: None for heads in groups.values() for who in heads if not _variant(who)}
    order = sorted(names, key=lambda who: (who != OURS, -_total(groups, who), who))
    return as_table(
        [
            {"right / silently wrong of posteriors; share of NUTS, cold / warm": who}
            | {
                f"{heads[OURS]['models']} {group}": _counts(heads.get(who))
                for group, heads in groups.items()
            }
            for who in order
        ]
    )


def _variant(who: str) -> bool:
    """Whether a row is curvi with something chosen."""
    return who.startswith(OURS) and who != OURS


def _total(groups: dict[str, dict[str, Row]], who: str) -> int:
    return sum(heads[who]["right"] for heads in groups.values() if who in heads)


def _counts(head: Row | None) -> str:
    if head is None:
        return "not run"
    ours = f"{head['right']} / {head['silent']} of {head['models']}"
    shares = [_number(head.get(name)) for name in ("median_of_nuts", "median_of_nuts_warm")]
    return f"{ours}; {' / '.join(dict.fromkeys(shares))}"


def _number(value: float | None) -> str:
    return "not run" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
