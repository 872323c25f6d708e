"""Leukemia gene expression as first published: integer intensities per gene and patient.

The LIBSVM files ``leu`` and ``leu.t`` were standardised over training and test patients together.
From the intensities, the test patients can be kept out of it.
"""

from __future__ import annotations

import csv
import re

import numpy as np

from curvi.datasets._content import format_error

MAX_LINE = 4096
_INTENSITY = re.compile(r"[+-]?[0-9]{1,7}")
_GENE = re.compile(r"[!-~]{1,40}")
_CALLS = {"A", "M", "P"}  # the detection calls: absent, marginal, present
_CLASSES = {"ALL": 1, "AML": -1}


def parse_intensities(
    content: bytes, name: str, *, patients: range, num_genes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Intensities of shape (patients, genes), patients in increasing order, and the gene names.

    A line of the table is a gene: description, accession number, then an intensity and a
    detection call for each patient, in the order in which the first line numbers the patients.

    Raises
    ------
    DataFormatError
        The first line does not number the given patients, a line has another number of fields, a
        field is not of its kind, a gene is repeated, or genes are missing or too many.
    """
    lines = _table(content, name, num_genes + 1)
    header = _fields(lines[0], name, 1)
    numbers = [int(word) if _INTENSITY.fullmatch(word) else -1 for word in header[2::2]]
    if header[3::2] != ["call"] * len(patients) or sorted(numbers) != list(patients):
        span = f"{patients.start} to {patients.stop - 1}"
        raise format_error(
            name, "line 1", f"does not number the patients {span}, a call after each"
        )
    genes: list[str] = []
    values = np.empty((num_genes, len(patients)), np.int64)
    for row, line in enumerate(lines[1:]):
        where, fields = f"line {row + 2}", _fields(line, name, row + 2)
        if len(fields) != 2 + 2 * len(patients):
            what = f"has {len(fields)} fields, not {2 + 2 * len(patients)}"
            raise format_error(name, where, what)
        wrong = [i for i in range(2, len(fields), 2) if not _INTENSITY.fullmatch(fields[i])]
        wrong += [i for i in range(3, len(fields), 2) if fields[i] not in _CALLS]
        if not _GENE.fullmatch(fields[1]):
            wrong.append(1)
        if wrong:
            what = f"field {min(wrong) + 1} is not an intensity, call or accession number"
            raise format_error(name, where, what)
        genes.append(fields[1])
        values[row] = [int(word) for word in fields[2::2]]
    if len(set(genes)) != num_genes:
        raise format_error(name, "", "an accession number occurs more than once")
    return np.ascontiguousarray(values[:, np.argsort(numbers)].T), np.array(genes)


def parse_labels(content: bytes, name: str, *, num_patients: int) -> tuple[np.ndarray]:
    """The class of every patient, in order: +1 for ALL and -1 for AML, as in ``leu``.

    Raises
    ------
    DataFormatError
        A line is not ``patient,class``, or a patient is missing or repeated.
    """
    lines = _table(content, name, num_patients + 1)
    if _fields(lines[0], name, 1) != ["patient", "cancer"]:
        raise format_error(name, "line 1", "does not read patient,cancer")
    labels = np.zeros(num_patients, np.int64)
    for number, line in enumerate(lines[1:], 2):
        match _fields(line, name, number):
            case [patient, kind] if _INTENSITY.fullmatch(patient) and kind in _CLASSES:
                index = int(patient) - 1
            case _:
                what = "does not hold a patient and ALL or AML"
                raise format_error(name, f"line {number}", what)
        if not 0 <= index < num_patients or labels[index]:
            what = f"patient {patient} is repeated or outside 1 to {num_patients}"
            raise format_error(name, f"line {number}", what)
        labels[index] = _CLASSES[kind]
    return (labels,)


def standardise(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    r"""Standardise every row by itself, then columns by mean and sd of the reference rows.

    .. math:: u_{ij} = (x_{ij} - \bar x_i) / s_i, \qquad z_{ij} = (u_{ij} - \bar u_j) / t_j

    with :math:`\bar u_j, t_j` (divisor :math:`n - 1`) over the rows of `reference` only. With
    all 72 patients as the reference this gives the numbers of ``leu`` and ``leu.t``.
    """
    rows = [_unit_rows(np.asarray(matrix, np.float64)) for matrix in (reference, *others)]
    mean, sd = rows[0].mean(axis=0), rows[0].std(axis=0, ddof=1)
    return tuple((matrix - mean) / sd for matrix in rows)


def _unit_rows(matrix: np.ndarray) -> np.ndarray:
    centred = matrix - matrix.mean(axis=1, keepdims=True)
    return centred / centred.std(axis=1, ddof=1, keepdims=True)


def _table(content: bytes, name: str, num_lines: int) -> list[str]:
    """The lines of a text file that must have exactly `num_lines`, empty ones at its end aside."""
    content = content.rstrip(b"\r\n")
    count = content.count(b"\n") + 1
    if count != num_lines:
        raise format_error(name, f"line {count}", f"the file has {count} lines, not {num_lines}")
    try:
        return content.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise format_error(name, f"byte {error.start}", "is not plain text") from error


def _fields(line: str, name: str, number: int) -> list[str]:
    if len(line) > MAX_LINE:
        raise format_error(name, f"line {number}", f"is longer than {MAX_LINE} characters")
    try:
        return next(csv.reader([line.removesuffix("\r")], strict=True), [])
    except csv.Error as error:
        raise format_error(
            name, f"line {number}", f"is not comma-separated text ({error})"
        ) from error
