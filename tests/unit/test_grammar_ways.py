"""Grammars that would stall the engine, by what xgrammar 0.2.8 needed for a token with 49,152 of them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_vllm.grammar_rules import read_rules
from worker_vllm.grammar_ways import is_ambiguous_grammar

JSON_LARK = r"""start: value
?value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" [pair ("," pair)*] "}"
pair: STRING ":" value
array: "[" [value ("," value)*] "]"
STRING: /"[^"\\\n]*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?/
"""

STALLING = {
    "bomb": 'root ::= root root | "" | [^a]',
    "rr nonnull": "root ::= root root | [^a]",
    "rr3": "root ::= root root root | [a-z]",
    "plus amb": 'root ::= root "+" root | "1"',
    "amb words": 'root ::= root " " root | [a-z]+',
    "unary left": "root ::= root [^a] | [^a] root | [^a]",
    "term star expr": 'root ::= [a-z]+ (" " root)*',
    "expr star term": 'root ::= (root " ")* [a-z]+',
    "plusplus": 'root ::= ([a-z]+ " "?)+',
    "plus3": "root ::= (([^a]+)+)+",
    "rep": 'root ::= ([a-z]{1,20} " "?){1,20}',
    "plusplus rules": """root ::= item root | item
item ::= [a-z]+ " "?""",
    "plusplus left": """root ::= root item | item
item ::= [^a]+""",
    "wsws": r"""root ::= ws ws ws ws ws ws "x"
ws ::= [ \n\t]*""",
    "dots8": """root ::= d d d d d d d d "x"
d ::= [^x]*""",
    "leftnull": """root ::= root x | [^a]
x ::= [^b] | ""
""",
    "altamb2": """root ::= (a | b)*
a ::= [^x] [^x]?
b ::= [^y] [^y]?""",
    "altamb3": """root ::= (a | b)*
a ::= [^x]+
b ::= [^y]+""",
    "nested opt": """root ::= (a? b?)+
a ::= [^x]+
b ::= [^y]+""",
    "list of lists": """root ::= (list " "?)*
list ::= (word " "?)*
word ::= [a-z]+""",
    "lark words": """start: (word " "?)+
word: /[a-z]+/
""",
    "lark expr": """start: expr
expr: expr OP expr | /[a-z0-9]+/
OP: " " | "+"
""",
    "indirect": """root ::= a
a ::= b " " a | c
b ::= a
c ::= [a-z]+""",
    "counted nested": """root ::= (word " "?){1,50}
word ::= [a-z]{1,30}""",
    "json lark ws": JSON_LARK + r"%ignore /[ \t\n]+/",
    "sql lark ws": """start: select ";"
select: "SELECT" columns "FROM" name ["WHERE" cond]
columns: name ("," name)*
cond: test ("AND" test)*
test: name "=" VALUE
name: /[a-z_]+/
VALUE: /[0-9]+/
%import common.WS
%ignore WS
""",
    "right null": """root ::= [^x] root b | ""
b ::= "" | "y"
""",
    "right tail ws": """root ::= word " " root ws | word
word ::= [a-z]+
ws ::= [ ]*""",
    "head ws": """root ::= ws root "x" | "y"
ws ::= [ ]*""",
    "mid mid": """root ::= [^x] root [^y] root [^z] | ""
""",
    "deep mid": """root ::= x
x ::= "a" x "a" | "a" x | ""
""",
    "two rules mid": """root ::= a b
a ::= [^x] a [^y] | ""
b ::= [^x] b [^y] | ""
""",
    "poly dot": """root ::= a a a
a ::= [^x]* "y"?""",
    "ws triple": r"""root ::= ("[" ws ws ws "]")*
ws ::= [ \n\t]*""",
}
"""More than 50 ms for a token before the 600th, most of them more than 300 ms before the 200th."""
KIN = {
    "starofrule": """root ::= item*
item ::= [^a]*""",
    "hidden": """root ::= n root [^a] | [^a]
n ::= "" | "b"
""",
    "cycle": """root ::= a | [a-z]
a ::= root | [a-z] root""",
    "block": """root ::= stmt*
stmt ::= "if " root | [a-z]+ ";"
""",
    "left null": "root ::= root [a-z]* | [a-z]",
    "unit": """root ::= a
a ::= b
b ::= a | [^a] b | ""
""",
}
"""Of the same making, though xgrammar came through 600 tokens of them."""
HARMLESS = {
    "vllm docs sql": """
root ::= select_statement

select_statement ::= "SELECT " column " from " table " where " condition

column ::= "col_1 " | "col_2 "

table ::= "table_1 " | "table_2 "

condition ::= column "= " number

number ::= "1 " | "2 "
""",
    "vllm tests sql lark": """
start: select_statement
select_statement: "SELECT" column "from" table "where" condition
column: "col_1" | "col_2"
table: "table_1" | "table_2"
condition: column "=" number
number: "1" | "2"
""",
    "json": r"""root ::= ws value ws
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ws ":" ws value (ws "," ws string ws ":" ws value)*)? ws "}"
array ::= "[" ws (value (ws "," ws value)*)? ws "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= [ \n\t]*""",
    "json ws after": r"""root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# blanks, bounded
ws ::= "" | " " | "\n" [ \t]{0,20}""",
    "json basic": r"""root ::= basic_any
basic_any ::= basic_number | basic_string | "true" | "false" | "null" | basic_array | basic_object
basic_integer ::= ("0" | "-"? [1-9] [0-9]*) ".0"?
basic_number ::= ("0" | "-"? [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
basic_string ::= ["] characters
characters ::= ["] | [^"\\\r\n] characters | "\\" escape characters
escape ::= ["\\/bfnrt] | "u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]
basic_array ::= "[" ("" | ws basic_any (ws "," ws basic_any)*) ws "]"
basic_object ::= "{" ("" | ws pair (ws "," ws pair)*) ws "}"
pair ::= basic_string ws ":" ws basic_any
ws ::= [ \n\t]*""",
    "arith left": """root ::= sum
sum ::= sum ("+" | "-") product | product
product ::= product ("*" | "/") power | power
power ::= unary "^" power | unary
unary ::= "-" unary | atom
atom ::= [0-9]+ ("." [0-9]+)? | [a-z]+ | "(" sum ")"
""",
    "arith star": r"""root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*""",
    "arith lark": r"""start: sum
?sum: product | sum "+" product -> add | sum "-" product -> sub
?product: atom | product "*" atom -> mul
?atom: NUMBER -> number | "-" atom -> neg | "(" sum ")"
NUMBER: /[0-9]+(\.[0-9]+)?/
""",
    "sql subset": """root ::= select ";"
select ::= "SELECT " columns " FROM " name joins where? order? limit?
columns ::= "*" | column (", " column)*
column ::= expr (" AS " name)?
joins ::= (" " ("LEFT " | "INNER ")? "JOIN " name " ON " cond)*
where ::= " WHERE " cond
cond ::= conj (" OR " conj)*
conj ::= pred (" AND " pred)*
pred ::= expr " " op " " expr | "NOT " pred | "(" cond ")" | expr " IN (" value (", " value)* ")"
op ::= "=" | "<>" | "<" | ">" | "<=" | ">=" | "LIKE"
expr ::= name ("." name)? | value | ("COUNT" | "SUM" | "AVG") "(" (expr | "*") ")"
value ::= [0-9]+ | "'" [^']* "'"
name ::= [a-zA-Z_] [a-zA-Z0-9_]*
order ::= " ORDER BY " name (" ASC" | " DESC")?
limit ::= " LIMIT " [0-9]+""",
    "bullets": r"""root ::= item+
item ::= "- " [^\r\n\x0b\x0c]+ "\n"
""",
    "numbered list": r"""root ::= "1. " line "2. " line "3. " line
line ::= [^\n]+ "\n"
""",
    "csv": r"""root ::= row+
row ::= field ("," field)* "\n"
field ::= [^",\n]* | "\"" [^"]* "\""
""",
    "right list": """root ::= word | word ", " root
word ::= [a-z]+""",
    "left list": """root ::= word | root ", " word
word ::= [a-z]+""",
    "chess": r"""root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?""",
    "xml": r"""root ::= element
element ::= "<" name attr* (">" content "</" name ">" | "/>")
attr ::= " " name "=\"" [^"]* "\""
content ::= (element | text)*
text ::= [^<]
name ::= [a-z]+""",
    "brackets": 'root ::= ("(" root ")" | "[" root "]")*',
    "lisp": r"""root ::= sexp
sexp ::= atom | "(" (sexp (" " sexp)*)? ")"
atom ::= [a-z0-9+*/-]+ | "\"" [^"]* "\""
""",
    "date": """root ::= year "-" month "-" day
year ::= [0-9]{4}
month ::= "0" [1-9] | "1" [0-2]
day ::= [0-2] [0-9] | "3" [01]""",
    "email": """root ::= local "@" host
local ::= [a-z0-9._-]{1,64}
host ::= label ("." label)+
label ::= [a-z0-9-]{1,63}""",
    "think": r"""root ::= "<think>" [^<]* "</think>" answer
answer ::= "yes" | "no" | "maybe: " [^\n]+""",
    "functions": r"""root ::= call ("; " call)*
call ::= name "(" (arg (", " arg)*)? ")"
arg ::= name "=" value
value ::= [0-9]+ | "\"" [^"]* "\"" | call | "[" (value (", " value)*)? "]"
name ::= [a-zA-Z_] [a-zA-Z0-9_]*""",
    "program": r"""root ::= stmt*
stmt ::= name " = " expr ";\n" | "if (" expr ") " block (" else " block)? "\n"
    | "while (" expr ") " block "\n" | "return " expr ";\n"
block ::= "{\n" stmt* "}"
expr ::= and (" || " and)*
and ::= cmp (" && " cmp)*
cmp ::= sum ((" == " | " < ") sum)?
sum ::= mul ((" + " | " - ") mul)*
mul ::= unary ((" * " | " / ") unary)*
unary ::= "!" unary | "-" unary | primary
primary ::= [0-9]+ | name ("(" (expr (", " expr)*)? ")")? | "(" expr ")" | "\"" [^"\n]* "\""
name ::= [a-z_] [a-z0-9_]*""",
    "json lark": JSON_LARK + r"%ignore /[ \t\n]/",
    "sql lark ignore": """start: select ";"
select: "SELECT" columns "FROM" name ["WHERE" cond]
columns: name ("," name)*
cond: test ("AND" test)*
test: name "=" VALUE
name: /[a-z_]+/
VALUE: /[0-9]+/
%ignore " "
""",
    "choice nested": """root ::= greeting " " name punct
greeting ::= "Hello" | "Hi" | "Good " ("morning" | "evening")
name ::= [A-Z] [a-z]+ (" " [A-Z] [a-z]+)?
punct ::= "." | "!"
""",
    "ternary": """root ::= cond
cond ::= or (" ? " cond " : " cond)?
or ::= atom (" | " atom)*
atom ::= [a-z]+ | "(" cond ")"
""",
    "markdown table": r"""root ::= row sep row+
row ::= "|" (" " [^|\n]+ "|")+ "\n"
sep ::= "|" ("---|")+ "\n"
""",
    "sentences": """root ::= sentence (" " sentence)*
sentence ::= [A-Z] [a-z]* (" " [a-z]+)* "."
""",
    "lines prose": r"""root ::= paragraph ("\n\n" paragraph)*
paragraph ::= line ("\n" line)*
line ::= [^\n]+""",
    "digits": """root ::= (num ","?)*
num ::= [0-9]+""",
    "ws3": r"""root ::= (ws "a" ws)* ws
ws ::= [ \n]*""",
    "dangle words": """root ::= "if " root (" else " root)? | [a-z]""",
}


@pytest.mark.parametrize("grammar", [*STALLING.values(), *KIN.values()], ids=[*STALLING, *KIN])
def test_what_stalls_the_engine_is_known(grammar: str) -> None:
    read_rules(grammar)
    assert is_ambiguous_grammar(grammar)


@pytest.mark.parametrize("grammar", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_people_write_is_let_pass(grammar: str) -> None:
    read_rules(grammar)
    assert not is_ambiguous_grammar(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "abcdefghijklmnopqrst" ([a-z]+ " "?)+ | [b-d]+',
        'root ::= root root | [a-z] # root ::= "a"',
        'root ::= (= "a") root root | "\\"" | [\\]"a] |',
        'root[lazy, capture="]"] ::= a | Token(1, 2)\na ::= a a | "::="',
        'root ::= (TagDispatch(("<f>", a), stop_str=(")")) a)+\na ::= [^b]+',
        'root ::= (Regex("[a-z]+", flags="i") " "?)+',
        r'root ::= ([\x61-\x7a\u00e9]+ " "{0,-1})+',
        "root ::= -x [] | (.y)+ \n-x ::= [^]\n.y ::= [a-z]+",
        '// a comment\n?start: (start start) -> pair | /[\\/]x\\/"/i | "a".."z" | <|end|> | %json {"a": "("}',
        'start[stop=/]/]: (WORD ["!"])~1..9\nWORD.2: /[a-z]+/\n%declare X\n',
        'start: (word " "?)+\n%import common (WORD, WS)\nword: WORD',
        'start: "a" "b"\n%import common.WS_INLINE -> BLANK\n%ignore BLANK',
        'start: "a" "b"\n%ignore "x"\n%ignore "y"\n | /[ ]+/',
        'start: "a" %lark {\n start: (word " "?)+\n word: /[a-z]+/\n}\n',
        'start: "a" | %json {"items": [{"type": "string", "pattern": "(\\\\w+ ?)+"}]}',
        'start: (~"b" b-b)+\nb-b: /[a-z]+/',
        "root ::= " + "(" * 400 + '"a"' + ")" * 400,
    ],
    ids=lambda grammar: grammar[:30],
)
def test_no_form_of_writing_hides_it(grammar: str) -> None:
    assert is_ambiguous_grammar(grammar)


@pytest.mark.parametrize(
    "grammar", ["", "%%%", "root ::= (", "root ::= [z-", 'start: "a', "root ::= )", "x y"]
)
def test_what_cannot_be_read_is_left_to_vllm(grammar: str) -> None:
    assert not is_ambiguous_grammar(grammar)


@given(st.text('abr:=|*+?()[]{},"\\/%~. \n-^1', max_size=40).map(lambda text: f"root ::= {text}") | st.text())
def test_any_text_is_judged(grammar: str) -> None:
    is_ambiguous_grammar(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "[a-z]* " * 9000,
        "root ::= " + '"a" | ' * 10000 + '"b"',
        "root ::= " + "(" * 30000,
        "root ::= " + '"' + "a" * 65000 + '"',
        "root ::= " + "a b " * 8000 + "\na ::= [a-z]\nb ::= [b-z]",
        "\n".join(f'r{n} ::= r{n + 1} "x" r{n + 1} [a-z] | [^b]' for n in range(1400)),
        "\n".join(f"r{n} ::= r{n + 1} | [a-z]" for n in range(3000)),
        'root ::= "' + "::=" * 20000,
        'start: "' + '\\"' * 30000,
        "start: " + "a[" * 30000,
        "root ::= " + "{1" * 30000,
        "root ::= " + "a " * 32000,
        "start: " + "/a" * 30000,
        'start: "a" %json ' + "[" * 60000,
    ],
    ids=lambda grammar: grammar[:30],
)
def test_it_takes_no_time_to_tell(grammar: str) -> None:
    begun = time.perf_counter()
    is_ambiguous_grammar(grammar)
    assert time.perf_counter() - begun < 2.0
