"""Native text as tokens: comments and strings are not code, macros are what they expand to."""

from __future__ import annotations

from stitchcuda.evaluation.integrity.native_tokens import expand, read


def tokens(text: str) -> list[str]:
    source = read(text)
    return [token.text for token in expand(source, source.macros)]


def test_comments_are_gone_and_strings_are_one_token() -> None:
    assert tokens('int a; // fork()\n/* kill( */ f("// no /* comment", \'"\');') == [
        *("int", "a", ";", "f", "(", "// no /* comment", ",", '"', ")", ";")
    ]


def test_strings_are_read_and_joined() -> None:
    assert tokens('f(".inc" "bin\\x20\\"x\\"")') == ["f", "(", '.incbin "x"', ")"]
    assert tokens('f(R"tag(a " \\n)" b)tag")') == ["f", "(", 'a " \\n)" b', ")"]


def test_pasted_tokens_are_joined() -> None:
    text = "#define CAT(a, b) a##b\n#define JOIN(a, b) CAT(a, b)\nJOIN(pt, race)(0); CAT(fo, rk)();"
    assert tokens(text) == ["ptrace", "(", "0", ")", ";", "fork", "(", ")", ";"]


def test_macros_expand_through_others_and_stop_at_themselves() -> None:
    assert tokens("#define A B\n#define B A\nA;") == ["A", ";"]
    assert tokens("#define F(x) g(x, x)\n#define G F(1)\nG + F;") == ["g", "(", "1", ",", "1", ")", "+", "F", ";"]
    assert tokens("#define S(x) #x\n#define V(...) f(__VA_ARGS__)\nV(S(a b), 2)") == ["f", "(", "a b", ",", "2", ")"]


def test_a_macro_that_names_another_takes_the_arguments_behind_it() -> None:
    assert tokens("#define NAME call\n#define call(x) fork(x)\nNAME(1);") == ["fork", "(", "1", ")", ";"]


def test_lines_are_counted_through_continuations_and_raw_strings() -> None:
    text = '#define A \\\n 1\nint a;\nauto s = R"(x\ny)"; /* a\nb */ int last;'
    source = read(text, first_line=10)
    assert {token.text: token.line for token in source.tokens}["last"] == 15
    assert [directive.line for directive in source.directives] == [10]


def test_a_bomb_of_macros_ends() -> None:
    lines = ["#define L0 x x x x x x x x"]
    lines += [f"#define L{n} " + " ".join([f"L{n - 1}"] * 8) for n in range(1, 12)]
    source = read("\n".join([*lines, "L11"]))
    assert len(expand(source, source.macros)) < 10_000_000


def test_broken_text_gives_what_can_be_read() -> None:
    assert tokens('int a = "open\nint b;')[:4] == ["int", "a", "=", "open"]
    assert "f" in tokens("f(((")
    assert tokens("/* never closed") == []
