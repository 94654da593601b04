//! Loaders: every container and spelling gives the same sessions, and bad input is named.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn sessions(text: &str) -> Result<Vec<Session>, DatasetError> {
    take(Reader::new("set".into(), records::from_text(text.to_owned(), "set")?), None, None)
}

fn refusal(text: &str) -> String {
    sessions(text).expect_err(text).to_string()
}

/// Answers and first messages, which is all there is to a problem.
fn problems(text: &str) -> Vec<(String, String, Option<i64>)> {
    let of = |session: &Session| {
        let [turn] = &session.turns[..] else { panic!("{} turns", session.turns.len()) };
        (session.id.clone(), turn.messages()[0].content.clone(), turn.answer)
    };
    sessions(text).expect("a data set").iter().map(of).collect()
}

#[test]
fn public_field_names_are_understood() {
    let text = r#"{"ID": "2024-I-1", "Problem": "A?", "Answer": 204}

{"problem": "B?", "solution": "113", "answer": "", "unique_id": 1}
{"question": "C?", "answer": "$1,000$"}
{"problem": "D?", "solution": "\\boxed{33}", "id": 60, "url": "x"}
{"problem": "E?", "solution": "Since 2 + 2 = 4, \\boxed{4}.", "Answer": 7.0}
{"problem": "F?", "answer": "x + 1"}"#;
    let found: Vec<_> = problems(text).into_iter().map(|(id, _, answer)| (id, answer)).collect();
    let expected = [
        ("2024-I-1", Some(204)),
        ("1", Some(113)),
        ("line-4", Some(1000)),
        ("60", Some(33)),
        ("line-6", Some(7)),
        ("line-7", None),
    ];
    assert_eq!(found, expected.map(|(id, answer)| (id.to_owned(), answer)));
}

#[test]
fn mistakes_are_named_with_line_field_value_and_what_is_allowed() {
    for (text, expected) in [
        ("{\"problem\": \"A\"}\n{\"problem\": ", "set:2: not valid JSON: EOF while parsing a value at column 11"),
        ("\n\n{\"problem\": ", "set:3: not valid JSON: EOF while parsing a value at column 11"),
        (
            "{\"text\": \"A\"}",
            "set: no text under `problem`, `Problem`, `question` or `Question`, and none of `prompt`, `messages`, \
             `conversations`, `history`; found fields `text`",
        ),
        (
            "{}\n{}",
            "set:1: no text under `problem`, `Problem`, `question` or `Question`, and none of `prompt`, \
                    `messages`, `conversations`, `history`; found no fields",
        ),
        ("", "set: the data set is empty"),
        ("\u{feff} \n", "set: the data set is empty"),
        ("[]", "set: the data set is empty"),
        ("{\"data\": 3}", "set: field `data` is `3`, expected a list of records"),
        ("3", "set: expected an object or a list of objects, found `3`"),
        ("{\"problem\": \"A\"}\n[1]", "set:2: expected an object, found `[1]`"),
        ("[{\"problem\": \"A\"}, null]", "set, entry 2: expected an object, found `null`"),
        ("{\"problem\": \"A\"}\n{\"problem\": [1]}", "set:2: field `problem` is `[1]`, expected text"),
        ("{\"problem\": \" \"}\n{}", "set:1: no text under `problem`, `Problem`, `question` or `Question`"),
        ("{\"problem\": \"A\"}\n{\"prompt\": \"B\"}", "set:2: a record of custom prompts among problems"),
        ("{\"messages\": 5}", "set: field `messages` is `5`, expected a list of messages"),
        (
            "{\"messages\": \"[\"}",
            "set: field `messages` is text but not JSON: EOF while parsing a list at line 1 column 1",
        ),
        ("{\"messages\": []}", "set: field `messages`: 0 messages, none for the assistant to answer"),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"bot\", \"content\": \"b\"}]}",
            "set: field `messages`, message 2: field `role` is `\"bot\"`, allowed are `system`, `developer`, `user`, \
             `assistant`, `tool`, `function`",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": 7}]}",
            "set: field `messages`, message 1: field `content` is `7`, expected text or a list of texts",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"text\": \"x\"}]}]}",
            "set: field `messages`, message 1: field `content`, part 1 is `{\"type\":\"image\",\"text\":\"x\"}`, expected \
             {\"type\": \"text\", \"text\": ...}",
        ),
        (
            "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}",
            "set: field `messages`: message 2: the assistant writes before a `user` message has text",
        ),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
    let long = format!("{{\"problem\": {:?}}}", vec![7; 100]);
    assert!(refusal(&long).len() < 150, "long values are cut: {}", refusal(&long));
}

#[test]
fn turns_keep_the_recorded_history() {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = json!([
        message("system", "s"),
        message("user", "issue"),
        message("assistant", "first"),
        {"role": "tool", "content": [{"type": "text", "text": "out"}, {"type": "text", "text": "put"}], "tool_call_ids": ["a"]},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "bash", "arguments": "{\"x\":1}"}}]},
        message("user", "done"),
    ]);
    let lens = |record: Value| -> Vec<usize> {
        sessions(&record.to_string()).expect("parses")[0].turns.iter().map(|turn| turn.messages().len()).collect()
    };
    // A recorded trajectory ends with what was recorded, a conversation wants an answer.
    assert_eq!(lens(json!({"messages": messages, "instance_id": "i"})), [2, 4]);
    assert_eq!(lens(json!({"messages": messages.to_string(), "traj_id": "t"})), [2, 4]);
    assert_eq!(lens(json!({"history": messages, "trajectory": []})), [2, 4]);
    assert_eq!(lens(json!({"messages": messages})), [2, 4, 6]);

    let session =
        &sessions(&json!({"messages": messages, "instance_id": "i", "traj_id": "t"}).to_string()).expect("parses")[0];
    assert_eq!(session.id, "t");
    let last = session.turns[1].messages();
    assert_eq!((last[3].role.as_str(), last[3].content.as_str()), ("user", "output"));
    assert_eq!(session.turns[0].recorded().map(|m| m.content.as_str()), Some("first"));
    assert_eq!(session.turns[1].recorded().map(|m| m.content.as_str()), Some("bash {\"x\":1}"));
}

#[test]
fn items_of_a_session_stand_together() {
    let text = "{\"messages\": [{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]}\n\
                {\"messages\": [{\"role\":\"user\",\"content\":\"d\"}]}";
    let found: Vec<_> = items(sessions(text).expect("parses")).into_iter().map(|item| (item.id, item.turn)).collect();
    assert_eq!(found, [("line-1", 1), ("line-1", 2), ("line-2", 1)].map(|(id, turn)| (id.to_owned(), turn)));
}

#[test]
fn a_limit_leaves_the_rest_unread() {
    let text = "{\"problem\": \"A\"}\n{\"problem\": \"B\"}\nbroken";
    let reader = || Reader::new("set".into(), records::from_text(text, "set").expect("a data set"));
    assert_eq!(take(reader(), None, Some(2)).expect("two are fine").len(), 2);
    assert!(take(reader(), None, Some(3)).is_err());
    let error = take(reader(), Some(&[Kind::Trajectory]), None).expect_err("problems").to_string();
    assert_eq!(error, "set: holds problems, this workload takes SWE-smith trajectories");
}

/// One problem as a file may spell it.
fn any_problem() -> impl Strategy<Value = (String, i64)> {
    ("[^\\s][\\PC\n\"\\\\]{0,40}[^\\s]", -5000..1_000_000i64)
}

fn spelled(problem: &(String, i64), id: usize, style: usize) -> Value {
    let (text, answer) = problem;
    match style {
        0 => json!({"problem": text, "answer": answer, "id": id}),
        1 => json!({"ID": id.to_string(), "Problem": text, "Answer": answer.to_string()}),
        2 => json!({"question": text, "answer": "", "solution": format!("${answer}$"), "unique_id": id, "more": [1]}),
        _ => json!({"Question": text, "Solution": format!("\\boxed{{{answer}}}"), "problem_id": id.to_string()}),
    }
}

fn written(records: &[Value], container: usize) -> String {
    match container {
        0 => records.iter().map(|record| format!("{record}\n")).collect(),
        1 => records.iter().map(|record| format!("\r\n{record}\r\n  \r\n")).collect(),
        2 => format!("\u{feff}{}", Value::from(records.to_vec())),
        3 => serde_json::to_string_pretty(records).expect("JSON"),
        4 => json!({"version": 1, "data": records}).to_string(),
        _ => serde_json::to_string_pretty(&json!({"data": records})).expect("JSON"),
    }
}

/// Roles and texts of a conversation that somebody could have had.
fn any_messages() -> impl Strategy<Value = Vec<(usize, String)>> {
    prop::collection::vec((0..4usize, "\\PC{0,20}"), 0..12)
}

const ROLE_NAMES: [&str; 4] = ["system", "user", "assistant", "tool"];

fn conversation(messages: &[(usize, String)], style: usize) -> Value {
    let list: Vec<_> = messages
        .iter()
        .map(|(role, text)| match style {
            2 => json!({"role": ROLE_NAMES[*role], "content": [{"type": "text", "text": text}]}),
            _ => json!({"role": ROLE_NAMES[*role], "content": text}),
        })
        .collect();
    match style {
        1 => json!({"messages": Value::from(list).to_string()}),
        _ => json!({"messages": list}),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_container_and_spelling_gives_the_same_problems(
        set in prop::collection::vec((any_problem(), 0..4usize), 1..6), container in 0..6usize,
    ) {
        let records: Vec<_> = set.iter().enumerate().map(|(id, (problem, style))| spelled(problem, id, *style)).collect();
        let expected: Vec<_> = set
            .iter()
            .enumerate()
            .map(|(id, ((text, answer), _))| (id.to_string(), text.clone(), Some(*answer)))
            .collect();
        prop_assert_eq!(problems(&written(&records, container)), expected);
    }

    #[test]
    fn every_spelling_of_messages_gives_the_same_turns(messages in any_messages()) {
        let read = |style| sessions(&conversation(&messages, style).to_string());
        let plain = read(0);
        for style in [1, 2] {
            prop_assert_eq!(&read(style), &plain);
        }
        // By hand: a turn wherever somebody else was last, and an assistant message or the end follows.
        let assistant = |at: usize| messages.get(at).is_some_and(|(role, _)| ROLE_NAMES[*role] == "assistant");
        let ends: Vec<_> = (1..=messages.len())
            .filter(|at| (assistant(*at) || *at == messages.len()) && !assistant(at - 1))
            .collect();
        let asked = |end: usize| {
            messages[..end].iter().any(|(role, text)| [1, 3].contains(role) && !text.trim().is_empty())
        };
        match plain {
            Ok(sessions) => {
                let found: Vec<_> = sessions[0].turns.iter().map(|turn| turn.messages().len()).collect();
                prop_assert_eq!(found, ends);
                for turn in &sessions[0].turns {
                    for (message, (_, text)) in turn.messages().iter().zip(&messages) {
                        prop_assert_eq!(&message.content, text);
                    }
                }
            }
            Err(_) => prop_assert!(ends.first().is_none_or(|first| !asked(*first))),
        }
    }

    #[test]
    fn no_text_makes_the_loader_panic(text in "[\\[\\]{}\":,a-z0-9 \n\\\\]{0,60}", cut in 0..400usize) {
        let _any = sessions(&text);
        let valid = written(&[spelled(&("A?".into(), 1), 1, 0), conversation(&[(1, "x".into()), (2, "y".into())], 1)], 3);
        let end = valid.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(valid.len());
        let _any = sessions(&valid[..end]);
    }
}

#[test]
fn conversations_of_sharegpt_are_sessions() {
    let text = json!([
        {"id": "a_0", "conversations": [
            {"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi."},
            {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}, {"from": "human", "value": "Thanks"}]},
        {"id": "a_1", "conversations": [{"from": "gpt", "value": "... the end of an answer."}]},
        {"id": "a_2", "conversations": [
            {"from": "gpt", "value": "... of another."}, {"from": "system", "value": "Be brief."},
            {"from": "user", "value": "And now?"}, {"from": "chatgpt", "value": "Now."}]},
        {"id": "a_3", "conversations": []},
    ]);
    let sessions = sessions(&text.to_string()).expect("a data set");
    let shape: Vec<_> = sessions.iter().map(|session| (session.id.as_str(), session.turns.len())).collect();
    assert_eq!(shape, [("a_0", 2), ("a_2", 1)], "those in which somebody asks something");
    let sent = |session: usize, turn: usize| -> Vec<(String, String)> {
        let messages = sessions[session].turns[turn].messages().iter();
        messages.map(|message| (message.role.clone(), message.content.clone())).collect()
    };
    let pair = |role: &str, content: &str| (role.to_owned(), content.to_owned());
    assert_eq!(sent(0, 1), [pair("user", "Hello"), pair("assistant", "Hi."), pair("user", "Why?")]);
    assert_eq!(sent(1, 0), [pair("system", "Be brief."), pair("user", "And now?")]);
    for (conversation, says) in [
        (
            json!([{"from": "alien", "value": "x"}]),
            "`conversations`, message 1: field `from` is `\"alien\"`, allowed are `system`",
        ),
        (
            json!([{"from": "human", "value": "x"}, {"from": "gpt"}]),
            "`conversations`, message 2: field `value` is `null`",
        ),
        (json!("x"), "field `conversations` is `\"x\"`, expected a list"),
    ] {
        let why = refusal(&json!([{"id": "b", "conversations": conversation}]).to_string());
        assert!(why.starts_with("set, entry 1: field ") && why.contains(says), "{why}");
    }
}

#[test]
fn csv_files_are_data_sets() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("set.csv");
    let load = |text: &str| {
        std::fs::write(&path, text).expect("writable");
        load(&Source::File(path.clone(), &Kind::ALL), None).map(|(_, sessions)| sessions)
    };
    let sessions = load("id,prompt,answer\nx,\"Two\nlines, \"\"quoted\"\"\",7\n,Three?,\n").expect("a data set");
    let of = |session: &Session| {
        (session.id.clone(), session.turns[0].messages()[0].content.clone(), session.turns[0].answer)
    };
    assert_eq!(
        sessions.iter().map(of).collect::<Vec<_>>(),
        [
            ("x".to_owned(), "Two\nlines, \"quoted\"".to_owned(), Some(7)),
            ("row-2".to_owned(), "Three?".to_owned(), None)
        ]
    );
    assert_eq!(load("question\nWhy?\n").expect("a data set").len(), 1);
    for (text, says) in [
        (
            "text,answer\na,1\n",
            "set.csv:1: no column `prompt`, `question` or `problem` in the header; found `text`, `answer`",
        ),
        ("prompt,answer\na,1\n ,2\n", "set.csv, row 2: column `prompt` is empty"),
        ("prompt,answer\na,1\nb\n", "set.csv, row 2: line 3: 1 columns, the header has 2"),
        ("prompt\n", "set.csv: the data set is empty"),
    ] {
        let why = load(text).expect_err(text).to_string();
        assert!(why.contains(says), "{why}");
    }
}
