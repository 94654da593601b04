"""The conversations and expressions of `chat_templates.py`."""

USER = {"role": "user", "content": " What is 1 < 2 & 'so'? "}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Yes."}
THOUGHT = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}
ODD = "naïve 中文 🙂 e\u0301 \u00a0\u2028\x07\x1b[0m \x7f \"double\" 'single' \\back\\ \t{{ 7 * 7 }} {% if %} <tag> \r\nend\n"
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Today's \"weather\" & <more>",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Città, 城市"},
        "days": {"type": "integer", "default": 3, "minimum": 1, "maximum": 10},
        "factor": {"type": "number", "default": 0.1},
        "unit": {"type": "string", "enum": ["C", "F", None]}}}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Searches.\nIn two lines.", "strict": True,
    "parameters": {"type": "object", "additionalProperties": False, "properties": {
        "words": {"type": "array", "items": {"type": "string"}, "description": "Words"},
        "range": {"type": "object", "properties": {"from": {"type": ["integer", "null"]}, "to": {"type": "number"}}, "required": ["from"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "exact": {"type": "boolean", "default": True, "nullable": True}}},
    "return": {"type": "string"}}}
BARE = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
NO_PARAMETERS = {"type": "function", "function": {"name": "stop"}}
TOOLS = [WEATHER, SEARCH, BARE]
ARGUMENTS = ('{"city": "Zürich \\"old\\" town", "days": 2, "factor": 1.5, "all": true, "none": null, "small": 1e-7, "large": 1e+16, '
             '"list": ["a", 1, 2.0, false, null, {"k": []}], "map": {"it\'s": "x", "b": {}}, "text": "two\\nlines \\u0007"}')


def call(name, arguments, number="call_0001"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made, **more):
    return {"role": "assistant", "content": None, "tool_calls": list(made), **more}


def result(content, number="call_0001", **more):
    return {"role": "tool", "tool_call_id": number, "content": content, **more}


CALL = calls(call("weather", ARGUMENTS))
MANY = calls(call("weather", '{"city": "Bern"}', "call00001"), call("search", '{"words": ["a", "b"]}', "call00002"))
PARTS = [{"type": "text", "text": "First. "}, {"type": "text", "text": "Second."}]

CONVERSATIONS = {
    "plain": {"messages": [USER]},
    "plain, no prompt": {"messages": [USER], "variables": {"add_generation_prompt": False}},
    "turns": {"messages": [USER, ANSWER, USER]},
    "turns, ends with the assistant": {"messages": [USER, ANSWER], "variables": {"add_generation_prompt": False}},
    "system": {"messages": [SYSTEM, USER]},
    "system, turns, no prompt": {"messages": [SYSTEM, USER, THOUGHT, USER, ANSWER], "variables": {"add_generation_prompt": False}},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "two systems": {"messages": [SYSTEM, {"role": "system", "content": "In French."}, USER]},
    "thoughts in the text": {"messages": [USER, THOUGHT, USER, THOUGHT, USER]},
    "reasoning": {"messages": [USER, {**ANSWER, "reasoning_content": "Hm.\n", "reasoning": "Hm.\n"}, USER]},
    "reasoning, last": {"messages": [USER, {**ANSWER, "reasoning_content": "Hm."}], "variables": {"add_generation_prompt": False}},
    "thinking on": {"messages": [USER], "variables": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}},
    "thinking off": {"messages": [SYSTEM, USER], "variables": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}},
    "tools": {"messages": [USER], "tools": TOOLS},
    "tools, system": {"messages": [SYSTEM, USER], "tools": TOOLS, "variables": {"add_generation_prompt": False}},
    "tools without parameters": {"messages": [USER], "tools": [NO_PARAMETERS, BARE]},
    "tools, thinking off": {"messages": [USER], "tools": [WEATHER], "variables": {"enable_thinking": False, "builtin_tools": ["x"]}},
    "call": {"messages": [USER, CALL, result("sunny")], "tools": TOOLS},
    "call, ends with it": {"messages": [USER, CALL], "tools": TOOLS, "variables": {"add_generation_prompt": False}},
    "call, answered": {"messages": [SYSTEM, USER, CALL, result('{"sky": "blue", "t": 21.50}', name="weather"), ANSWER, USER], "tools": TOOLS},
    "call without tools": {"messages": [USER, CALL, result("sunny")]},
    "calls, results": {"messages": [USER, MANY, result("a", "call00001"), result("b", "call00002")], "tools": TOOLS},
    "call beside text": {"messages": [USER, {**CALL, "content": "I look."}, result("sunny"), USER], "tools": TOOLS},
    "call beside thoughts": {"messages": [USER, calls(call("weather", '{"city": "Bern"}'), content="", reasoning_content="Look it up."),
                                          result("sunny")], "tools": TOOLS},
    "call with an object": {"messages": [USER, calls(call("weather", {"city": "Bern", "days": 1})), result("sunny")], "tools": TOOLS},
    "call with no arguments": {"messages": [USER, calls(call("now", "{}")), result("noon")], "tools": [BARE]},
    "call that is no JSON": {"messages": [USER, calls(call("weather", "{city")), result("sunny")], "tools": TOOLS},
    "two rounds of calls": {"messages": [USER, MANY, result("a", "call00001"), result("b", "call00002"), CALL, result("sunny"), ANSWER, USER],
                            "tools": TOOLS},
    "result in parts": {"messages": [USER, CALL, result(PARTS)], "tools": TOOLS},
    "parts": {"messages": [{"role": "user", "content": PARTS}]},
    "parts everywhere": {"messages": [{"role": "system", "content": PARTS}, {"role": "user", "content": PARTS[:1]},
                                      {"role": "assistant", "content": PARTS}, {"role": "user", "content": PARTS}]},
    "parts with an image": {"messages": [{"role": "user", "content": [IMAGE, {"type": "image"}, PARTS[0]]}]},
    "no parts": {"messages": [{"role": "user", "content": []}]},
    "empty texts": {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""},
                                 USER]},
    "null fields": {"messages": [{**USER, "name": None}, {**ANSWER, "refusal": None, "tool_calls": None, "function_call": None}, USER]},
    "odd characters": {"messages": [{"role": "system", "content": ODD}, {"role": "user", "content": ODD}, {"role": "assistant", "content": ODD},
                                    {"role": "user", "content": ODD}]},
    "odd tools": {"messages": [USER, calls(call("weather", {"city": ODD, ODD: [ODD, {ODD: 0.1}]})), result(ODD)],
                  "tools": [{"type": "function", "function": {"name": "odd", "description": ODD, "parameters": {"type": "object", "properties": {
                      "items": {"type": "string", "description": ODD}, "keys": {"type": "array", "items": {"type": "number"}},
                      "values": {"type": "array"}, "get": {"type": ["array", "null"], "items": {}}, "$ref": {"$ref": "#/x"}}}}}]},
    "unknown role": {"messages": [USER, {"role": "critic", "content": "No."}, USER]},
    "assistant first": {"messages": [ANSWER, USER]},
    "two users": {"messages": [USER, USER]},
    "named": {"messages": [{**USER, "name": "ann"}, {**ANSWER, "name": "bob"}, USER]},
    "documents": {"messages": [USER], "variables": {"documents": [{"title": "T", "text": "It's so.", "doc_id": 1}], "citation_mode": "fast"}},
    "no messages": {"messages": []},
    "plain tools": {"messages": [USER], "tools": [{"name": "now", "description": "The time", "parameters": {}}]},
    "many turns": {"messages": [SYSTEM] + [USER, ANSWER] * 4 + [USER]},
    "spaces": {"messages": [{"role": "system", "content": "\n \x1c a \u3000\n"}, {"role": "user", "content": "\n\n b \t"}, {"role": "assistant", "content": "\n</think>\n c\n"},
                            {"role": "user", "content": " \n"}]},
    "tokens": {"messages": [{"role": "user", "content": "<|im_end|> [INST] <think></think> <tool_call> <s>"}, {"role": "assistant", "content": "a</think>b</think>c"}, USER]},
    "result is a dict": {"messages": [USER, CALL, result({"sky": "blue", "t": 21.5, "ok": True, "no": None})], "tools": TOOLS},
    "tool ids": {"messages": [USER, calls(call("now", "{}", "a"), call("now", "{}", "b")), result("1", "b"), result("2", "a"), USER], "tools": [BARE]},
}

VALUES = {"text": "it's", "both": "it's \"so\"\n\t\\ é\x07\u00a0\u2028🙂", "n": 7, "f": 0.1, "whole": 2.0, "large": 1e16, "small": 1e-05,
          "big": 123456789012345678901234567890.0, "yes": True, "no": False, "none": None, "list": ["a", 1, 2.0, None, True, ["b"], {}],
          "map": {"b": 1, "a": {"it's": None, "x": [1.5]}, "items": [1], "1": 2}, "empty": [], "words": "one two  three", "mixed": "Ab cD éA"}
EXPRESSIONS = [
    # str and repr of values
    "{{ none }} {{ yes }} {{ no }} {{ n }} {{ f }} {{ whole }} {{ large }} {{ small }} {{ big }}",
    "{{ list }}", "{{ map }}", "{{ [text, both] }}", "{{ text }}|{{ both }}", "{{ list | string }}", "{{ map.a | string | length }}",
    "{{ (1, 'a') }} {{ (1,) }} {{ () }} {{ [] }} {{ {} }}", "{{ map.items() | list }}", "{{ map | dictsort }}", "{{ {1: 2, none: 3, 1.5: 'x'} }}",
    "{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.0 / 3 }} {{ -0.0 }} {{ 100000000000000000000.0 }} {{ 1.5e300 }} {{ 2 ** 0.5 }}",
    "{{ 12345678901234567890 }} {{ -9223372036854775808 }} {{ 2 ** 70 }}", "{{ missing }}|{{ [missing] }}|{{ missing | string }}",
    "{{ 'a' ~ none ~ true ~ 1.0 ~ [1, 'x'] ~ {'k': 1e-7} ~ missing }}", "{{ '\\x00\\x1f \\u200b\\ufeff\\u00ad\\ue000 e\\u0301' }}{{ ['\\x00\\x1f \\u200b\\ufeff\\u00ad\\ue000 e\\u0301'] }}",
    "{{ ['a\\\\b', \"it's\", 'say \"x\"', 'both \\' and \"', '\\x85\\xa0\\u3000🙂中'] }}", "{{ true if yes }}|{{ 1 if no }}", "{{ [true, false, none, True, False, None] }}",
    # arithmetic
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}", "{{ 7 / 2 }} {{ 8 / 2 }} {{ 2 ** 3 }} {{ 2 ** -1 }} {{ 2.0 ** 2 }}",
    "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1 + true }} {{ true + true }} {{ 3 * 1.0 }} {{ 1 - 0.5 }} {{ -n }}",
    "{{ 'ab' * 3 }}|{{ 2 * 'x' }}|{{ 'x' * -1 }}|{{ [1] * 2 }}|{{ 'x' * true }}", "{{ 'a' + 1 }}", "{{ 'a' + none }}", "{{ none + 'a' }}", "{{ missing + 'a' }}", "{{ 'a' - 'b' }}",
    "{{ [1] + [2, 'x'] }} {{ ([1] + [2])[1] }} {{ ([1] + [2]) | length }} {{ ([1] + [2]) is sequence }} {{ ([1] + [2]) | tojson }}", "{{ (1 + 2) ~ (3 + 4) ~ 'x' * 2 }}", "{{ 1 ~ 2 * 3 }}",
    "{{ -map.b }} {{ -list[1] }} {{ list[-map.b] }} {{ -n | abs }}", "{{ 2 ** 3 ** 2 }}", "{{ 10 - 3 - 2 }} {{ 10 - (3 - 2) }} {{ 2 * (3 + 4) }} {{ (1 + 2) * 3 }}",
    # comparison and logic
    "{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 0 == false }} {{ '1' == 1 }} {{ none == false }}", "{{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ [1, 2] < [1, 3] }} {{ [1] < [1, 0] }}",
    "{{ 'a' < 1 }}", "{{ none < 1 }}", "{{ none > none }}", "{{ missing > 1 }}", "{{ missing == none }} {{ missing == missing }} {{ missing == '' }} {{ missing != 1 }}", "{{ [] == empty }} {{ {'a': 1} == {'a': 1.0} }} {{ [1, 2] != [1] }}",
    "{{ '' or 'x' }} {{ 'a' and 'b' }} {{ 0 or none }} {{ not [] }} {{ not 0.0 }} {{ not missing }} {{ not 'x' }}", "{{ 1 if [] else 2 }} {{ 1 if {} else 2 }} {{ 1 if ' ' else 2 }}",
    "{{ not 1 == 2 }} {{ not (1 == 1 and no) }} {{ yes and no or 3 }} {{ yes or (no and 1) }}", "{{ 1 == 1 == true }}",
    "{{ 'a' in 'abc' }} {{ 'x' not in 'abc' }} {{ '' in '' }} {{ 1 in [1.0] }} {{ 'a' in map }} {{ 1 in map }} {{ none in [none] }} {{ 'items' in map }}",
    "{{ 1 in 'abc' }}", "{{ 'a' in none }}", "{{ 'a' in missing }}", "{{ 'a' in 5 }}", "{{ [] in map }}", "{{ missing in [1] }} {{ missing in {} }}", "{{ missing in 'x' }}",
    # attributes, items, slices
    "{{ map.a['x'][0] }} {{ map['b'] }} {{ map.nothing }}|{{ map['nothing'] }}|{{ none.x }}|{{ n.x }}|{{ text.x }}", "{{ missing.x }}", "{{ map.nothing.x }}", "{{ missing['x'] }}", "{{ none['x'] }}|{{ none[0] }}",
    "{{ map['items'] }} {{ map.b.items is defined }} {{ map.a.items is defined }} {{ map.a['items'] is defined }} {{ map.a['items'].x is defined }} {{ 1 if map.a['items'] }}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}", "{{ map.get('b') }} {{ map.get('z') }} {{ map.get('z', 5) }} {{ map.keys() | list }} {{ map.values() | list }}", "{{ map.nothing() }}", "{{ map.update({}) }}", "{{ list.append(1) }}",
    "{{ text[0] }}{{ text[-1] }}|{{ text[99] }}|{{ list[0] }} {{ list[-1] }} {{ list[99] }}|{{ list['x'] }}", "{{ list[1:3] }} {{ list[:-1] }} {{ list[-2:] }} {{ list[::-1] }} {{ list[::2] }} {{ list[5:1:-2] }} {{ list[99:] }} {{ list[-99:2] }}",
    "{{ words[1:3] }} {{ words[::-1] }} {{ words[:3:-1] }} {{ words[-3:] }} {{ both[-1:] }}", "{{ list[3][1:] }}", "{{ map[1:] }}", "{{ missing[1:] }}", "{{ (1, 2, 3)[1:] }} {{ list[1:2].x }}|{{ list[0:0] }}", "{{ list['a':] }}", "{{ list[::0] }}",
    # tests
    "{% for v in [none, yes, 1, 1.5, 'x', [], {}, (1,), missing] %}{{ v is string }} {{ v is mapping }} {{ v is sequence }} {{ v is iterable }} {{ v is number }} {{ v is none }} {{ v is boolean }} {{ v is defined }};{% endfor %}",
    "{% for v in [none, yes, 1, 1.5, 'x', []] %}{{ v is integer }} {{ v is float }} {{ v is true }} {{ v is false }} {{ v is callable }};{% endfor %}",
    "{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 1 is lt 2 }} {{ 'a' is in ['a'] }} {{ 'Ab' is lower }} {{ 'AB' is upper }} {{ '12' is lower }} {{ none is sameas none }} {{ 1 is not string }} {{ 1 is ne 2 }}",
    "{{ missing is undefined }} {{ map.x is defined }} {{ map.x is not defined }}", "{{ missing.x is defined }}", "{{ map.items() is sequence }} {{ map.items() is iterable }} {{ list | map('string') is iterable }} {{ list | map('string') is sequence }}",
    # methods of texts
    "{{ words.split() }} {{ words.split(' ') }} {{ words.split(' ', 1) }} {{ ' a b  c '.split(none, 1) }} {{ words.rsplit(' ', 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ 'a,b'.split(sep=',') }} {{ ''.split() }} {{ ''.split(',') }}", "{{ words.split('') }}",
    "{{ '  x \\n\\t\\x1c'.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.lstrip('ab') }}|{{ 'a\\n'.rstrip('\\n') }}|{{ ' x '.lstrip() }}|{{ '\\u200bx'.strip() }}", "{{ 'a\\nb\\r\\nc\\x0bd\\u2028e\\n'.splitlines() }} {{ 'a\\nb\\r\\n'.splitlines(true) }}",
    "{{ mixed.upper() }} {{ mixed.lower() }} {{ mixed.title() }} {{ mixed.capitalize() }} {{ mixed.swapcase() }} {{ \"they're bill's\".title() }} {{ 'ß'.upper() }}", "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('') }}", "{{ 'abc'.startswith(['a']) }}", "{{ 'abc'.startswith(none) }}",
    "{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'ab'.replace('', '-') }}", "{{ 'a'.replace('a', none) }}", "{{ both.find('é') }} {{ 'abab'.rfind('b') }} {{ 'abc'.find('x') }} {{ 'abab'.index('b') }} {{ 'aaa'.count('aa') }} {{ 'ab'.count('') }}", "{{ 'a'.index('x') }}",
    "{{ ', '.join(['a', 'b']) }} {{ '-'.join('abc') }} {{ '-'.join(map) }}", "{{ ','.join([1]) }}", "{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.rpartition('-') }}",
    "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.center(4) }}| {{ 'ab'.center(5, '*') }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '.') }} {{ 'prefix'.removeprefix('pre') }} {{ 'prefix'.removesuffix('fix') }}",
    "{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'aé'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ ''.isspace() }} {{ 'A1'.isupper() }} {{ '1'.isupper() }} {{ 'a_'.islower() }} {{ 'é'.isascii() }} {{ 'Ab Cd'.istitle() }}", "{{ 'a'.nothing() }}", "{{ none.strip() }}", "{{ missing.strip() }}", "{{ n.strip() }}",
    "{{ list.count('a') }} {{ list.index(2.0) }} {{ (1, 2).index(2) }}",
    # formatting
    "{{ '%s %r %d %5d|%-5d|%05d %+d %x %X %o %c %%' % (text, text, 3.9, 42, 42, 42, 42, 255, 255, 8, 'c') }}", "{{ '%.2f %e %g %g %g %8.3f|%-8s|%8s|%.2s' % (3.14159, 12345.678, 0.0001, 1e-5, 1e20, 2.5, 'ab', 'cd', 'xyz') }}", "{{ '%s' % none }} {{ '%s' % [1, none] }} {{ '%s' % map }} {{ '%(b)s %(a)r' % map }}",
    "{{ '%s %s' % 'a' }}", "{{ 'x' % 1 }}", "{{ '%d' % 'a' }}", "{{ '%s and %s' | format('a', none) }} {{ '%(x)s' | format(x=1.0) }} {{ '%s' | format([1]) }}", "{{ '{} {} {!r}'.format(1, none, 'x') }} {{ '{0}{1}{0} {x}'.format('a', 'b', x=[true]) }} {{ '{{}} {}'.format(1.0) }}",
    "{{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:,}|{:.2f}|{:+}|{:x}|{:#x}|{:e}|{:%}|{:.3}|{:10.3f}|'.format('a', 'b', 'c', 'd', 42, 1234567, 3.14159, 5, 255, 255, 1234.5, 0.25, 'abcdef', 2.0) }}", "{{ '{a.x[0]} {b[1]}'.format(a=map.a, b=list) }}", "{{ '{:.3} {:g} {:} {:_}'.format(2.0, 1e6, 1e16, 10000) }}", "{{ '{}'.format() }}", "{{ '{:d}'.format('x') }}",
    # filters
    "{{ list | join(', ') }} {{ 'abc' | join('-') }} {{ [{'k': 1}, {'k': none}, {}] | join('/', attribute='k') }} {{ missing | join }} {{ map | join(',') }}", "{{ none | join }}", "{{ none | length }}", "{{ missing | length }} {{ map | length }} {{ both | length }} {{ list | count }}", "{{ 5 | length }}",
    "{{ none | trim }} {{ '  x ' | trim }}| {{ 'xax' | trim('x') }} {{ 5 | upper }} {{ true | lower }} {{ 'heLLo wOrld-x' | title }} {{ 'heLLo' | capitalize }} {{ 'aXbX' | replace('X', 1) }} {{ 1.0 | replace('.', ',') }}",
    "{{ list | first }} {{ list | last }} {{ empty | first }}|{{ 'abc' | last }} {{ missing | first }}|{{ map | first }}", "{{ 'abc' | list }} {{ map | list }} {{ 'abc' | reverse }} {{ [1, 2] | reverse | list }}", "{{ none | list }}",
    "{{ none | default('d') }} {{ missing | default('d') }} {{ '' | default('d', true) }} {{ none | default('d', boolean=true) }} {{ 0 | d('x') }} {{ missing | default }}|", "{{ missing.x | default('a') }}", "{{ map.z | default('d') }} {{ map.z | default([]) | length }} {{ none | string }} {{ 'a' | safe }}",
    "{{ '5' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 5.9 | int }} {{ ' 5 ' | int }} {{ '5.7' | int }} {{ none | int }} {{ true | int }} {{ 'ff' | int(0, 16) }} {{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }}", "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42 | round }} {{ 2.1 | round(0, 'ceil') }} {{ 2.19 | round(1, 'floor') }} {{ -3 | abs }} {{ 1.5 | abs }}",
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'a'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [{'k': 2}, {'k': 1}] | sort(attribute='k') }} {{ [3, 1] | min }} {{ ['a', 'B'] | max }} {{ [1, 2.5] | sum }} {{ [] | max }}|", "{{ [1, 'a'] | sort }}",
    "{{ [{'k': 1}, {'k': 2}, {}] | selectattr('k', 'defined') | list }} {{ [{'k': 1}, {'k': 2}] | selectattr('k', 'equalto', 2) | list }} {{ [0, 1, none, 2] | select | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ [{'k': 1}, {'k': 0}] | rejectattr('k') | list }} {{ [{'k': 1}] | map(attribute='k') | list }} {{ ['a', 'b'] | map('upper') | join }} {{ [{}] | map(attribute='k', default=5) | list }}",
    "{{ 1 if [] | select else 2 }} {{ 1 if [] | map('upper') else 2 }} {{ 1 if [] | select | list else 2 }}", "{{ [1] | select | length }}", "{{ map.items() }} {{ map.keys() }} {{ map.values() | length }} {{ 1 if {}.items() else 2 }} {{ map.keys() | last }} {{ 'b' in map.keys() }} {{ ('b', 1) in map.items() }}", "{{ map.items()[0] }}|{{ (list | map('string'))[0] }}", "{{ [{'k': 1}, {'k': 2}] | sum(attribute='k') }} {{ [] | sum }} {{ none | select | list }} {{ '' | map('upper') | list }}", "{{ 5 | map('upper') | list }}", "{{ [1] | map('string') | tojson }}", "{{ none | map('upper') | list }}", "{{ [1] | select | last }}", "{{ [1, 1, 2] | unique | list }} {{ ['a', 'A'] | unique | list }} {{ [1, 2, 3] | batch(2) | list }}",
    "{{ map | items | list }} {{ missing | items | list }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'A': 2} | dictsort(reverse=true) }}", "{{ none | items | list }}", "{{ {1: 2, 'a': 3} | dictsort }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ 'a\\n' | indent }}|", "{{ '<a href=\"x\">\\'&' | e }} {{ '<' | escape }}", "{{ 'a' | nothing }}", "{{ 'a,b' | split(',') }}", "{{ 1 is nothing }}", "{{ nothing() }}", "{{ [[1, 2], [3]] | sum(start=[]) }}",
    # tojson
    "{{ list | tojson }} {{ map | tojson }} {{ both | tojson }} {{ large | tojson }} {{ small | tojson }} {{ big | tojson }} {{ none | tojson }}", "{{ map | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=4) }} {{ [[], {}] | tojson(indent='\\t') }} {{ [1, [2]] | tojson(indent=0) }}",
    "{{ map | tojson(sort_keys=true, separators=(',', ':')) }} {{ both | tojson(ensure_ascii=true) }} {{ both | tojson(true) }} {{ '\\x7f<>&\\'' | tojson }} {{ '\\x7f' | tojson(ensure_ascii=true) }}", "{{ missing | tojson }}", "{{ [missing] | tojson }}", "{{ (1, 2) | tojson }} {{ {2: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ map.items() | list | tojson }}", "{{ map.items() | tojson }}",
    # statements
    "{% set ns = namespace(a=1, items=[]) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% set ns.items = ns.items + [i] %}{% endfor %}{{ ns.a }} {{ ns.items }}", "{% set x = 1 %}{% for i in [1, 2] %}{% set x = i %}{% endfor %}{{ x }}", "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set (c, d) = [2, 3] %}{{ c }}{{ d }}", "{% set x %}a{{ 1 }}\n{% endset %}{{ [x] }}",
    "{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}|{{ loop.nextitem }}|{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }};{% endfor %}", "{% for i in [1, 2, 3, 4] if i % 2 == 0 %}{{ loop.index }}{{ i }}{% else %}none{% endfor %}",
    "{% for i in none %}{% endfor %}", "{% for i in missing %}x{% else %}empty{% endfor %}", "{% for i in 'ab' %}{{ i }}-{% endfor %}{% for i in map %}{{ i }},{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [[1, [2]], [3]] recursive %}{% if i is iterable %}<{{ loop(i) }}>{% else %}{{ i }}{% endif %}{% endfor %}", "{% macro m(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(b=2, a=none) }}{{ m() }}{{ [m(1)] }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}", "{% macro m() %}<{{ caller(1, 'y') }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}{% set x | trim %}  y {% endset %}{{ x }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}|{{ x }}", "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}", "{% raw %}{{ x }}{% endraw %}{# {{ x }} #}{{ '{{' }}", "{% block b %}x{{ n }}{% endblock %}",
    "{{ dict(a=1) }} {{ range(3) | list }} {{ range(5, 0, -2) | list }}", "{{ raise_exception('no') }}", "{{ strftime_now('%d %b %Y %H:%M:%S %A %B %-d %j %y %m %p %I') }}", "{% include 'x' %}", "{% if no %}{% include 'x' %}{% endif %}ok", "{% do 1 %}",
    # whitespace
    "a\n  {% if yes %}\n  b\n  {% endif %}\n  c\n", "a {%- if yes -%} b {%- endif -%} c", "  {%+ if yes %}x{% endif %}\n y", "{% if yes +%}\nx{% endif %}", "a\n  {# c #}\n  b\n\n", "{{ 1 }}\n{{ 2 -}}\n  3  {{- 4 }}\n", "a\r\nb\rc{{ ['\\r'] }}\r\n", "{% for i in [1, 2] -%}\n  {{ i }}\n{%- endfor %}", "x{%- set a = 1 %}\n\n y", "{{- '' -}}  x", "\ufeffa{{ 1 }}",
]
