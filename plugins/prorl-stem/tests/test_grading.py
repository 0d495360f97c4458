# ruff: noqa: RUF001 - look-alikes are among what is tested
"""Verdicts of the function that the grader's processes run, in such a process."""

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")
LONG = 60.0

# gold, answer, question: the kinds that graders get wrong in public
RIGHT = [
    ("5 kJ", "5000 J", ""),
    ("6.022×10²³", "6.022e23", ""),
    (r"6.022\times10^{23}\ \mathrm{mol^{-1}}", "6.022e23 /mol", ""),
    ("1 atm", "101325 Pa", ""),
    ("10 m/s", "10", "What is the speed (in m/s)?"),
    ("10 m/s", "10", "Give the speed in meters per second."),
    ("10 m/s", "36", "Give the speed in km/h."),
    ("0.354", "0.3536", ""),
    ("0.3536", "0.354", ""),
    ("2-3", "2.5", ""),
    ("2–3 m", "2.5 m", ""),
    ("2 m to 3 m", "250 cm", ""),
    ("between 2 and 3 m", "2.5 m", ""),
    ("5.0 ± 0.2", "5.1", ""),
    ("[2,3]", "2.2", ""),
    ("$8,645.09", "8645.09", ""),
    (r"\$8,645.09", "8645.09", ""),
    ("8645.09", "$8,645.09", ""),
    ("-$5", "-5", ""),
    ("78.4 °C", "351.55 K", ""),
    ("25 °C", "77 °F", ""),
    ("100 °C", "100 degrees Celsius", ""),
    ("100 °C", "212 deg F", ""),
    (r"9.6 \AA", r"0.96\ \mathrm{nm}", ""),
    (r"258 \mu \mathrm{m}", "0.258 mm", ""),
    ("258 µm", "258 μm", ""),
    ("10", "10 m/s", "What is its speed (in m/s)?"),
    ("10", "36 km/h", "What is its speed (in m/s)?"),
    ("10", "10 m/s", "What is its speed?"),
    ("4.19 J/(g K)", "4.19 J/g/K", ""),
    ("4.19 J/(g K)", "4190 J kg^-1 K^-1", ""),
    ("4.19 J/g·K", "4.19 J/(g·K)", ""),
    ("8.314 J/mol K", r"8.314\ \mathrm{J\,mol^{-1}\,K^{-1}}", ""),
    ("3 m/s", r"3\ \mathrm{ms^{-1}}", ""),
    ("3.21e13 / cm^3", "3.21e19 m^-3", ""),
    ("90 degrees", "1.571 rad", ""),
    (r"28.71^{\circ}", "28.71", "in degrees"),
    ("5", "5 apples", ""),
    ("5 m", "5 m tall", ""),
    ("10 m/s", "10 m/s (downward)", ""),
    ("10 m/s", "10 m/s downward", ""),
    ("3 bushels", "3 bushels of barley", ""),
    ("0.5 kg", "0.5 kg, approximately", ""),
    ("5 million", "5e6", ""),
    ("2.5 billion years", "2.5 Gyr", ""),
    ("1 2/3 m", "1.667 m", ""),
    ("1.5 mol/L", "1.5 M", ""),
    ("3 V/m", "3 N/C", ""),
    ("13.6 eV", "2.18e-18 J", ""),
    ("50 kN/m^2", "50 kPa", ""),
    ("1.2e-5 /°C", "1.2e-5 K^-1", ""),
    ("4.18 J/(g °C)", "4.18 kJ/(kg K)", ""),
    ("B", r"\textbf{(B)}\ 12", "Which? (A) 10 (B) 12"),
    ("B", "b", "Which? A: 10 B: 12"),
    ("B", "B", "What is the field?"),
    (r"4.2\ \mathrm{kJ/(kg\cdot K)}", "4200 J/kg/K", ""),
    ("10%", "0.1", ""),
    ("10%", "10", ""),
    ("0.25", r"25\%", ""),
    ("1/3", "0.333", ""),
    ("v = 3.0 m/s", "3.0 m/s", ""),
    ("approximately 3.0 m/s", "≈ 3 m/s", ""),
    ("x=5", "5", ""),
    ("55", "55.0", ""),
    ("0.00", "0.001", ""),
    ("1.6e-19", "1.602e-19", ""),
    ("2.75e11 cm", r"2.75\times10^{9} m", ""),
    ("10^{-3}", "0.001", ""),
    ("mitochondria", "The Mitochondria", ""),
    (r"\mathrm{H_2SO_4}", "H2SO4", ""),
    (r"\ce{SO4^2-}", "SO₄²⁻", ""),
    ("ΔU=Q−W", r"\Delta U = Q - W", ""),
    ("ΔU=Q−W", "W = Q - ΔU", ""),
    ("E=mc^2", "mc^2", ""),
    (r"\frac{\pi^2 \hbar^2}{2 m L^2}", r"\frac{h^2}{8mL^2}", ""),
    (r"nRT\ln(V_2/V_1)", r"-nRT \ln\left(\frac{V_1}{V_2}\right)", ""),
    (r"\hbar \omega(v+1/2)", r"\hbar\omega\left(v+\tfrac12\right)", ""),
    (r"\frac{e^{2 i t}}{2+2 i}", r"\frac{(1-i)e^{2it}}{4}", ""),
    (r"\sin^2\theta", r"1-\cos^2\theta", ""),
    (r"\pi/3", "1.047", ""),
    ("2, 3", "3, 2", ""),
    (r"\pm 5", "5, -5", ""),
    (r"\sqrt{2gh}", r"(2 g h)^{1/2}", ""),
    (r"\int_0^1 x^2 dx", r"\frac{1}{3}", ""),
]
WRONG = [
    ("10 m", "10 km", ""),
    ("−2.5 eV", "2.5 eV", ""),
    ("H₂O", "H₂O₂", ""),
    ("CO", "Co", ""),
    (r"\ce{SO4^2-}", "SO4", ""),
    ("ΔU=Q−W", "ΔU=Q+W", ""),
    ("10 m/s", "10", "What is the speed?"),
    ("10 m/s", "10 kg", "in m/s"),
    ("10", "10 km/h", "What is its speed (in m/s)?"),
    ("10", "10 kg", "What is its speed (in m/s)?"),
    ("2-3 m", "3.5 m", ""),
    ("2-3", "-2.5", ""),
    ("2.5", "2-3", ""),
    ("78.4 °C", "78.4 K", ""),
    ("0.354", "0.36", ""),
    ("0.3536", "0.35", ""),
    ("55", "55.2", ""),
    ("1280", "1284", ""),
    ("10%", "1", ""),
    ("10% ", "10 m", ""),
    ("6.022e23", "6.022e22", ""),
    ("1.00e-30", "0", ""),
    ("h/p", "p/h", ""),
    ("GMm/r^2", "GMm/r", ""),
    ("22/7", r"\pi", ""),
    ("(2,3)", "(3,2)", ""),
    (r"\pm 5", "5", ""),
    ("yes", "no", ""),
    (r"\frac{dM}{dt}", r"\frac{M}{t}", ""),
    (r"e^{-t}", r"e^{t}", ""),
    ("5 m", "5 m or 6 m", ""),
    ("5", "5 or 6", ""),
    ("2 ms", "2 m s", ""),
    ("6", "2*3*5", ""),
    ("23", "2*3", ""),
    ("12/3", "1 2/3", ""),
    ("5", "5 million", ""),
    ("2 m", "2 square m", ""),
    ("B", "(C)", "Which? (A) 10 (B) 12 (C) 14"),
    ("B", "b", "What is the field?"),
]
UNDECIDED = [
    ("mitochondria", "the power house of the cell", ""),
    ("12", "twelve", ""),
    ("GMm/r^2", "G m_1 m_2/r^2", ""),
    ("5", "!!!", ""),
]
OPTIONS = {"A": "Karyotyping", "B": "PCR", "C": "Sequencing", "D": "Painting", "E": "text"}


async def graded(graders, gold, answer, question="", **more):
    return await graders.grade({"gold": gold, "answer": answer, "question": question, **more}, LONG)


@pytest.mark.parametrize(("gold", "answer", "question"), RIGHT)
async def test_right(graders, gold, answer, question):
    found = await graded(graders, gold, answer, question)
    assert found["verdict"] == "right", found


@pytest.mark.parametrize(("gold", "answer", "question"), WRONG)
async def test_wrong(graders, gold, answer, question):
    found = await graded(graders, gold, answer, question)
    assert found["verdict"] == "wrong" or (found["verdict"] == "undecided" and found["kind"] != "text"), found


@pytest.mark.parametrize(("gold", "answer", "question"), UNDECIDED)
async def test_undecided(graders, gold, answer, question):
    assert (await graded(graders, gold, answer, question))["verdict"] == "undecided"


@pytest.mark.parametrize("gold", [gold for gold, _, _ in RIGHT + WRONG + UNDECIDED])
async def test_every_gold_is_usable(graders, gold):
    found = await graders.grade({"gold": gold}, LONG)
    assert found["verdict"] == "good_gold", found


@pytest.mark.parametrize("gold", ["", "  ", "?", "$", r"\text{ }", "..."])
async def test_a_gold_without_content_is_found_out(graders, gold):
    assert (await graders.grade({"gold": gold}, LONG))["verdict"] == "bad_gold"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("B", "right"),
        ("(B)", "right"),
        ("b", "right"),
        (r"\text{B: PCR}", "right"),
        ("pcr", "right"),
        ("C", "wrong"),
        ("B or C", "wrong"),
        ("Karyotyping", "wrong"),
        ("none of them", "wrong"),
        ("", "wrong"),
    ],
)
async def test_a_choice_is_a_letter_or_the_options_text(graders, answer, verdict):
    found = await graded(graders, "B", answer, options=OPTIONS)
    assert (found["verdict"], found["rung"]) == (verdict, "choice")


@pytest.mark.parametrize(
    ("more", "gold", "answer", "verdict"),
    [
        ({"digits": 2}, "0.354", "0.35", "right"),
        ({"digits": 4}, "0.35361", "0.3530", "wrong"),
        ({"relative": 0.05}, "100", "104", "right"),
        ({"relative": 0.05}, "100", "106", "wrong"),
        ({"relative": 0.0}, "0.354", "0.3541", "wrong"),
    ],
)
async def test_the_tolerance_can_be_set(graders, more, gold, answer, verdict):
    assert (await graded(graders, gold, answer, **more))["verdict"] == verdict


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('touch {file}')",
        r"\text{{__import__('os').system('touch {file}')}}",
        "x.__class__.__base__.__subclasses__()",
        "(" * 500,
        "{" * 300 + "}" * 300,
        r"\frac{" * 200 + "1",
        "\x00\ud7ff\u202e5",
        "5" * 3900,
        "5" * 5000,
        "5 " + "m/" * 200 + "s",
        "5 m^99",
        "1e99999",
        "10^{10^{10}}",
        "H" * 3000,
        "9" * 300 + " km",
        "_" * 1000,
        "=" * 1000,
    ],
)
async def test_nasty_text_is_only_a_wrong_answer(graders, tmp_path, answer):
    file = tmp_path / "made"
    found = await graded(graders, "5 m", answer.replace("{file}", str(file)), "how many m")
    assert found["verdict"] in ("wrong", "undecided"), found
    assert not file.exists()
