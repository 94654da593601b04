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
                      "items": {"type": "string", "description": ODD}, "keys": {"type": "array", "items": {"type": "number"}}}}}}]},
    "unknown role": {"messages": [USER, {"role": "critic", "content": "No."}, USER]},
    "assistant first": {"messages": [ANSWER, USER]},
    "two users": {"messages": [USER, USER]},
    "named": {"messages": [{**USER, "name": "ann"}, {**ANSWER, "name": "bob"}, USER]},
    "documents": {"messages": [USER], "variables": {"documents": [{"title": "T", "text": "It's so.", "doc_id": 1}], "citation_mode": "fast"}},
    "no messages": {"messages": []},
}

VALUES = {"text": "it's", "both": "it's \"so\"\n\t\\ é\x07\u00a0\u2028🙂", "n": 7, "f": 0.1, "whole": 2.0, "large": 1e16, "small": 1e-05,
          "big": 123456789012345678901234567890.0, "yes": True, "no": False, "none": None, "list": ["a", 1, 2.0, None, True, ["b"], {}],
          "map": {"b": 1, "a": {"it's": None, "x": [1.5]}, "items": [1], "1": 2}, "empty": [], "words": "one two  three", "mixed": "Ab cD éA"}
EXPRESSIONS = []
