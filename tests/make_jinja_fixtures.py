#!/usr/bin/env python3
"""Write tests/data/jinja/cases.json: small templates and the text that transformers' Jinja environment makes of them, or null
where it raises. C test: tests/test_jinja.c. Run with a Python that has transformers; the tests need none.

    python tests/make_jinja_fixtures.py [FILE]
"""
import datetime
import itertools
import json
import os
import sys

import transformers.utils.chat_template_utils as utils


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2024, 7, 26, 12)


utils.datetime = Day
VARIABLES = {
    "messages": [{"role": "system", "content": " S "}, {"role": "user", "content": "Hi <b> & 'q' \"d\"\n"},
                 {"role": "assistant", "content": "\u4f60\u597d \U0001f600\u3000", "tool_calls": [{"name": "f", "arguments": {"b": [1, 2.5, None], "a": "\u00e9"}}]}],
    "tools": None, "add_generation_prompt": True, "n": 7, "x": 2.5, "big": 1e16, "small": 1e-7, "t": True, "no": None, "e": "", "l": [3, 1, 2], "d": {"k": "v", "items": 5, "B": 1, "a": 2},
    "s": "one  two\tthree\nfour", "u": "\u00c9t\u00e9 Stra\u00dfe",
}
EXPRESSIONS = """
0 ** -1 | 0.0 ** -1 | false ** -1 | 2 ** -1 | true ** -1 | true ** 2 | 2 ** true | 10.0 ** 400 | -2.0 ** 3 | 0 ** 0 | 2 ** 0.5 | 6.0 // 0.1 | 6.0 % 0.1 | -5.5 % 2 | -5.5 // 2 | 5.5 % -2 | 5.5 // -2 | -6 // 3.0 | 6 % -3.0 | 5.0 // 0 | l|tojson(indent=true) | l|tojson(indent=false)
1 + 2 * 3 - 4 // 3 | 7 % 3 | -7 // 2 | -7 % 3 | 7 / 2 | 2 ** 3 ** 2 | -2 ** 2 | 1e3 | 1_000 | 0.1 + 0.2 | 1e22 | 123456789.5 | 1.0 | big | small | 5 // 0 | 9223372036854775807
'a' + 'b' | 'a' ~ 1 ~ none ~ missing ~ 'c' | 'ab' * 3 | [1] * 2 + [2] | 'x' 'y' "z" | 'it\\'s' | "q\\"" | '\\n\\t\\x41\\u00e9\\101\\q' | 'a' + 1 | none + 'a' | missing + 'a' | 'a' * -1
1 < 2 < 3 | 1 < 3 < 2 | 1 == 1.0 | 1 == true | 'a' == 1 | 'a' < 'b' | 'a' < 1 | [1, 2] == [1, 2] | {'a': 1} == {'a': 1} | 'a' in 'abc' | '' in 'abc' | 4 not in l | 3 in l | 'k' in d | 'x' in missing | 'x' in none | 1 in 'a' | not 1 in [1] | not not 1
missing | missing.a | missing['a'] | none.a | 'x'.a | 'x'.a.b | no.a.b | d.k | d['items'] | d.missing | d['missing'] | d.get('k') | d.get('z') | d.get('z', 3) | l[0] | l[-1] | l[9] | l[-9] | 'abc'[1] | 'abc'[-1] | 'abc'[5] | u[0] | missing is defined | d.pop | d.pop('k') | l.append(1) | messages[0].content | messages[1]['role']
l[1:] | l[:-1] | l[::-1] | l[::2] | l[-2:] | 'hello'[1:3] | 'hello'[::-1] | 'hello'[10:] | l[5:1] | l[2:0:-1] | u[:3] | messages[1:] | messages[::-1][0].role | l[::0]
true | none | True | False | None | [1, 'a', none, true, 1.5] | {'a': 1, 'b': 'x'} | (1, 2) | (1,) | 1, 2 | [] | {} | "it's" | ["it's"] | ['\\n\\\\'] | [u] | d | l
'a' if true else 'b' | 'a' if false | ('a' if false) is defined | 'a' if n > 5 else 'b' if n > 3 else 'c' | (1 if t else 2) + 1 | not t or t | t and 'x' | e or 'y' | no or missing or 0 | 1 and 0 or 5
' a '|trim | 'xxaxx'|trim('x') | u|lower | 'abc'|upper | 'hELLO wOrld'|capitalize | '\\u00e9t\\u00ff \\u0434\\u03b8\\u05d0 \\u4f60'|upper | '\\u0436\\u0418'|capitalize | '\\u00d8rsted \\u00e5'|title | "it's a-b (c) [d]"|title | l|length | 'abc'|length | u|length | d|count | missing|length | none|length | 5|length | 5|string | none|string | l|string | l|join | l|join(', ') | none|join | messages|join(',', attribute='role') | 'abc'|join('-')
'aXbXc'|replace('X', '-') | 'aXbXc'|replace('X', '-', 1) | 'abc'|replace('', '.') | 5|replace(5, 6) | missing|replace('a', 'b') | l|first | l|last | []|first | []|first is defined | 'abc'|first | l|list | 'abc'|list | d|list | missing|list | l|reverse|list | 'abc'|reverse | l|sort | l|sort(reverse=true) | ['b', 'A', 'c']|sort | ['b', 'A', 'c']|sort(case_sensitive=true) | messages|sort(attribute='role')|map(attribute='role')|list | l|min | l|max | l|sum | []|sum | messages|map(attribute='content')|map('length')|sum
messages|map(attribute='role')|list | messages|map(attribute='zz', default='-')|join | l|map('string')|join | [' a ']|map('trim')|list | [1, 2, 3, 4]|select('odd')|list | [1, 2, 3, 4]|reject('odd')|list | [0, 1, '']|select|list | messages|selectattr('role', 'equalto', 'user')|map(attribute='role')|list | messages|selectattr('tool_calls', 'defined')|list|length | messages|selectattr('tool_calls')|list|length | messages|rejectattr('role', 'in', ['user'])|list|length | messages|map(attribute='role')|length | messages|map(attribute='role') is defined | none|map(attribute='x')|list
missing|default('x') | none|default('x') | none|default('x', true) | ''|d('x', boolean=true) | missing|d | l|tojson | d|tojson | d|tojson(indent=2) | messages|tojson | {'a': [], 'b': {}, 'c': [{'d': 1}]}|tojson(indent=4) | d|tojson(sort_keys=true) | d|tojson(separators=(',', ':')) | u|tojson | "\\x01\\x7f/<>&'"|tojson | x|tojson | none|tojson | missing|tojson | 1e16|tojson | d.items()|list | d|items|list | d|items|length | missing|items|list | d|dictsort | d|dictsort(true) | d|dictsort(reverse=true) | {'a': 2, 'b': 1}|dictsort(by='value')
'1_000'|int | '1_0.5'|float | '_1'|int(7) | '1_'|int(7) | '1__0'|int(7) | 1e400|int | 'inf'|int(7) | 'nan'|int(7) | ('nan'|float)|int(7) | ('inf'|float)|int(7) | 'nan(1)'|float(7) | '0x1f'|int(7) | true|abs | true|round | ['nan'|float, '-inf'|float, 'inf'|float]|tojson
'5'|int | '5.7'|int | 'x'|int | 'x'|int(9) | 5.9|int | none|int | -5.9|int | '5'|float | 'x'|float | 3|float | 2.5|round | 3.5|round | 2.567|round(2) | 2.1|round(0, 'ceil') | 7|round | -3|abs | -2.5|abs | [1, 1.0, 'a', 'A', 'b']|unique|list | '<a href="x">&\\'</a>'|e | '<b>'|safe | ('<b>'|safe) + '<i>' | ('<b>'|e) ~ '<i>' | '<b>'|safe|trim | '<b>'|escape|escape | "a\\nb\\n\\nc"|indent | "a\\nb\\n\\nc"|indent(2, true) | "a\\nb\\n\\nc"|indent('>', blank=true) | 'a'|indent(first=true) | ''|indent
5 is number | true is number | 'a' is string | l is sequence | d is sequence | d is mapping | d.items() is sequence | l is iterable | 'a' is iterable | 5 is iterable | none is none | missing is none | missing is undefined | missing is iterable | missing is sequence | true is true | 1 is true | false is false | true is boolean | 1 is boolean | 1 is integer | true is integer | 1.5 is float | 3 is odd | 3 is even | 4 is divisibleby 2 | 4 is divisibleby(3) | 1 is eq 1 | 'a' is equalto 'a' | 1 is ne 2 | 1 is lt 2 | 3 is ge 3 | 'a' is in ['a'] | 'a' is not in ['a'] | 1 is sameas 1 | 'ab' is lower | 'AB' is upper | 'aB' is lower | range is callable | 'x' is callable | not missing is defined | 1 is not none and 2 is none | d.pop is defined
s.split() | s.split(' ') | s.split(' ', 1) | s.split(none, 1) | 'a,b,c'.split(',') | 'a,b,c'.rsplit(',', 1) | 'a,b,c'.split(',')[-1] | 'a'.split('') | ''.split() | ''.split(',') | ' a '.strip() | ' a '.lstrip() | ' a '.rstrip() | 'xyax'.strip('xy') | 'abc'.startswith('a') | 'abc'.startswith(('z', 'a')) | 'abc'.endswith('c') | 'abc'.startswith(5) | 'a-b'.replace('-', '+') | 'Ab'.upper() | 'Ab'.lower() | 'hello world'.title() | "they're".title() | 'hELLO'.capitalize() | 'abcabc'.find('c') | 'abcabc'.rfind('c') | 'abc'.find('z') | u.find('S') | 'abcabc'.count('bc') | 'abc'.count('') | '-'.join(['a', 'b']) | '-'.join([1]) | s.splitlines() | 'a-b-c'.partition('-') | 'a-b-c'.rpartition('-') | 'abc'.rpartition('-') | 'abc'.removeprefix('a') | 'abc'.removesuffix('c') | '12'.isdigit() | ''.isdigit() | ' '.isspace() | l.index(1) | l.count(1) | l.index(9) | d.keys()|list | d.values()|list | d.items()|length | d.keys()[0] is defined | 'abc'.swapcase is defined | 'x'.a()
range(3)|list | range(1, 4)|list | range(5, 0, -2)|list | range(0)|list | range(1, 2, 0) | range(1000001) | dict(a=1, b='x') | dict({'a': 1}, b=2) | strftime_now('%d %b %Y') | strftime_now('%Y-%m-%d %H:%M') | namespace(a=1).a | raise_exception('no') | nothing() | n() | unknown_name is defined | loop is defined | 'a'.__class__ | ''['__class__'] | d.__class__ is defined | range(3) is sequence
'<{}|{}>'.format(1, 'a') | '{1}{0}{x}{{}}'.format(1, 2, x=3) | '{}'.format() | '{'.format(1) | '{a}'.format(1) | u|tojson(ensure_ascii=true) | {u: '\U0001f600'}|tojson(ensure_ascii=true) | dict(**d).k | range(*[1, 4])|list | range(*5) | dict(**l) | (1|nothing) if false else 2 | 1 if true or 2 is nothing
'a' ~ {'b': [1, (2,)]} | 1 if | 1 + | (1 | [1, | {1: 2}[1] | {'a' 1} | 'abc | 1 2 | a.b. | x|nothing | x is nothing | 5 is in 5 | -'a' | +5 | - 5 | --5 | l|join(d=' ') | l|join(z=' ') | 'a'|trim('a', 'b', 'c') | 'a'|replace('a') | ~1 | 1 ~ | 1 is | not | none | none is not defined | true is not false | "a" "b" ~ 'c' 'd' | l.0 | messages.0.role | 1__0 | 1.e | .5 | 1.5.x | {'a': 1}.a | ('a', 'b')[1] | [1, 2,][1] | (1, 2, 3)[::-1] | {'a': 1, 'a': 2} | [[1, 2], [3]]|map('first')|list | [[1, 2], [3]]|sum(start=[]) | 'a' 'b'|upper | -1|abs | (-1)|abs | 1|string + '2' | 'a' in 'abc' and 'b' in 'abc' | 1 in [1] == true | 2 > 1 == true
"""
TEXTS = [
    # loops
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ x }};{% endfor %}{{ x }}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}={{ x }} {% else %}z{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}z{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }} {% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for a, b in l %}{% endfor %}",
    "{% for (a, b) in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for c in 'h\u00e9' %}{{ c }}.{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}", "{% for x in none %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% break %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% if loop.changed(x > 2) %}!{% endif %}{% endfor %}", "{% for x in l %}{% set y = x %}{{ y }}{% endfor %}{{ y is defined }}", "{% set y = 0 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }}{% endfor %}{{ y }}",
    "{% set ns = namespace(y=0, z=[]) %}{% for x in l %}{% set ns.y = ns.y + x %}{% set ns.z = ns.z + [x] %}{% endfor %}{{ ns.y }}{{ ns.z }}{{ ns.q }}", "{% set d.k = 1 %}", "{% set l.x = 1 %}", "{% for m in messages %}{% set m = 1 %}{{ m }}{% endfor %}", "{% for x in l %}{% if loop.first %}{% set q = x %}{% endif %}{{ q }}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for m in messages[1:] %}{{ m.role }}{% endfor %}", "{% for m in messages %}{{ m['content']|trim }}|{% endfor %}", "{% set messages = messages[1:] %}{{ messages|length }}", "{% for i in l %}{% for i in [9] %}{{ i }}{% endfor %}{{ i }}{% endfor %}",
    # if, set, with
    "{% if n == 1 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if missing %}a{% elif e %}b{% endif %}", "{% if l %}{% set q = 1 %}{% endif %}{{ q }}", "{% if 1 %}a", "{% endif %}", "{% if %}{% endif %}", "{% else %}", "{% if 1, %}a{% endif %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a = 1, 2 %}{{ a }}", "{% set q %} x {{ n }} {% endset %}[{{ q }}]", "{% set q | upper | trim %} x {% endset %}[{{ q }}]", "{% set q %}a{% endset %}{{ q is string }}{{ q + 'b<' }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "{% filter upper %}abc{{ n }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}abc{% endfilter %}", "{% set 5 = 1 %}", "{% set x.y.z = 1 %}", "{% set none = 1 %}", "{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q }}", "{%- generation -%} a {%- endgeneration -%} b", "{% do 1 %}", "{% include 'x' %}", "{% nothing %}", "{% set x = namespace(a=1) %}{{ x['a'] }}{{ x.b is defined }}",
    "{% for x in l %}{% set q %}{% if x == 1 %}{% break %}{% endif %}a{% endset %}{{ q }}{% endfor %}", "{% for x in l %}{% filter upper %}{% if x == 1 %}{% continue %}{% endif %}a{% endfilter %}b{% endfor %}{{ x }}",
    "{% for x in l %}{% set q %}z{% continue %}{% endset %}{% endfor %}{{ q is defined }}",
    # macros
    "{% macro m(a, b=2, c=a) %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=6) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m() %}{{ q }}{% endmacro %}{% set q = 5 %}{{ m() }}", "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(3) }}", "{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call m(1) %}in{{ n }}{% endcall %}", "{% macro m() %}{{ caller('z') }}{% endmacro %}{% call(a) m() %}<{{ a }}>{% endcall %}", "{% macro m() %}a{% endmacro %}{{ m() ~ 'b' }}{{ m()|length }}{{ m is callable }}", "{% macro m(t) %}{{ t.upper() }}{% endmacro %}{% for x in ['a'] %}{{ m(x) }}{% endfor %}",
    "{% macro m(a, b=2, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 5], c=6) }}{{ m(**{'a': 7, 'c': 8}) }}{{ m(*[1], **{'b': 9}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1, 2]) }}",
    "{% macro m(a=1, b) %}{% endmacro %}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{% set q = 1 %}{{ q }}{% endmacro %}{{ m() }}{{ q }}",
    # text, white space, comments, raw
    "a\n{% if 1 %}\nb\n{% endif %}\nc", "a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n", "a {%- if 1 -%} b {%- endif -%} c", "a {{- n -}} b", "  {{ n }}  \n x", "  {%+ if 1 %}b{% endif +%}\n c", "{# c #}\na{# d -#} \n b", "a\n  {# c #}\n  b", "{#- c -#} x", "{# {% if %} #}y", "{# open",
    "{% raw %}{{ n }}{% if %}{% endraw %}z", "a {%- raw -%} {{ n }} {%- endraw -%} b", "{% raw %}\n a \n{% endraw %}\nb", "  {% raw %}x\n  {% endraw %}", "{% raw %}x", "{{ '{{' }}{{ '%}' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {}} }}", "a\r\nb\rc\n\n", "\n", "", "x\n", "{{ n", "{% if 1", "{{ }}", "}} %} #}", "{ { % }", "\u00e9 {{ u }} \u4f60",
    "{% if 1 %}\n\n a{% endif %}\n\nb", "{%if 1%}{{n}}{%endif%}", "{% set q = 1 -%}\n\n  a", "{{ n -}}\n\n  a", "a\t{% if 1 %}\tb\t{% endif %}", "a\n\t {% if 1 %}b{% endif %}", "{% if 1 %}  {% if 1 %}x{% endif %}  {% endif %}\n  {% if 1 %}y{% endif %}", "{% for x in l %}\n    {{ x }}\n{% endfor %}\nend", "{%- for x in l %}\n    {{- x }}\n{%- endfor %}\nend", "{%\nif 1\n%}a{%\nendif\n%}", "a{{ '\n' }}b", "{{ 'a\nb' }}", "{%- if 1 %} {%- endif %} z", "  {{- n }}", "x {%+ if 1 %}a{% endif %}",
    "\u3000{%- if 1 %}a{% endif %}", "a\u00a0\n\u2003{% if 1 %}b{% endif %}", "{{ n }}\n{{ n }}\n", "{% if 1 %}\r\n a{% endif %}", "{{ '\\' }}", "{{ \"\\\n\" }}", "{{- '' }}\n  {%- if 1 %}\n", "{#\n#}\n{#-\n-#}\n a",
]


def render(text):
    try:
        return utils._compile_jinja_template(text).render(**json.loads(json.dumps(VARIABLES)))
    except Exception:
        return None


def main(path):
    texts = ["{{ %s }}" % e.strip() for line in EXPRESSIONS.split("\n") for e in split(line) if e.strip()] + TEXTS
    texts += ["%s{%%%s if 1 %s%%}%s{%%%s endif %s%%}%sc" % (a, s, s2, b, s3, s4, b) for a, b in itertools.product(("x\n ", " "), ("\n ", " \n")) for s, s2, s3, s4 in itertools.product(("", "-", "+"), ("", "-"), ("", "-"), ("", "+"))]
    with open(path, "w") as f:
        json.dump({"variables": VARIABLES, "cases": [[t, render(t)] for t in texts]}, f, indent=0)
        f.write("\n")


def split(line):
    """Splits at ` | `, which separates expressions; filters are written without blanks."""
    return line.split(" | ")


if __name__ == "__main__":
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "jinja")
    os.makedirs(here, exist_ok=True)
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "cases.json"))
