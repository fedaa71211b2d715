//! What chat templates may do, and what becomes of those that do more.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::gguf::Writer;
use model::chat::SpecialTexts;
use model::{ChatInput, ChatTemplate, ModelError, Tokenizer};
use serde_json::{Value, json};

fn template(source: &str) -> ChatTemplate {
    let tokens = SpecialTexts { bos: Some("<s>".into()), eos: Some("</s>".into()), ..SpecialTexts::default() };
    ChatTemplate::new(source, None, tokens).unwrap()
}

fn input(messages: Value) -> ChatInput {
    ChatInput { messages, ..ChatInput::default() }
}

#[track_caller]
fn check(source: &str, messages: Value, expected: &str) {
    assert_eq!(template(source).render(&input(messages)).unwrap(), expected);
}

/// A template that is stopped, and the message that says why.
#[track_caller]
fn check_stopped(source: &str, part: &str) {
    let error = template(source).render(&input(json!([{ "role": "user", "content": "hi" }]))).unwrap_err();
    assert!(matches!(error, ModelError::Template { .. }), "{error:?}");
    assert!(error.to_string().contains(part), "{error}");
}

const TEXT_ONLY: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}";
const PARTS_ONLY: &str =
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}/{% endfor %}{% endfor %}";
const BOTH: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}[{{ p.type }}]{{ p.text }}{% endfor %}{% endif %}{% endfor %}";

#[test]
fn content_takes_the_form_that_the_template_knows() {
    let text = |content: &str| json!([{ "role": "user", "content": content }]);
    let parts =
        json!([{ "role": "user", "content": [{ "type": "text", "text": " a" }, { "type": "text", "text": "b" }] }]);
    check(TEXT_ONLY, text("a"), "<user>a");
    check(TEXT_ONLY, parts.clone(), "<user>a\nb");
    check(PARTS_ONLY, text("a"), "<user>a/");
    check(PARTS_ONLY, parts.clone(), "<user> a/b/");
    check(BOTH, text("a"), "a");
    check(BOTH, parts, "[text] a[text]b");
    // Nothing is said of content that is not there.
    check(TEXT_ONLY, json!([{ "role": "assistant", "content": null }]), "<assistant>None");

    let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
    let error = template(TEXT_ONLY).render(&input(image.clone())).unwrap_err();
    assert!(matches!(error, ModelError::TemplateRefused { .. }) && error.to_string().contains("image_url"), "{error}");
    check(BOTH, image, "[image_url]");
}

#[test]
fn messages_must_be_a_list_of_objects() {
    for messages in [json!(null), json!("hi"), json!([1]), json!({ "role": "user" })] {
        let error = template(TEXT_ONLY).render(&input(messages)).unwrap_err();
        assert!(error.to_string().contains("array of objects"), "{error}");
    }
    check(TEXT_ONLY, json!([]), "");
}

#[test]
fn a_refusal_is_told_from_a_failure() {
    let refusing = template(
        "{% macro check(m) %}{% if m.role == 'robot' %}{{ raise_exception('No ' ~ m.role ~ 's.') }}\
        {% endif %}{% endmacro %}{% for m in messages %}{{ check(m) }}{% endfor %}",
    );
    let error = refusing.render(&input(json!([{ "role": "robot", "content": "" }]))).unwrap_err();
    assert!(matches!(&error, ModelError::TemplateRefused { message } if message == "No robots."), "{error:?}");

    let error = ChatTemplate::new("line\n{% if %}", None, SpecialTexts::default()).unwrap_err();
    assert!(matches!(error, ModelError::Template { line: Some(2), .. }), "{error:?}");
    assert!(error.to_string().contains("`default` fails at line 2"), "{error}");
    check_stopped("\n\n{{ nothing.at.all }}", "line 3");
    check_stopped("{{ 'x' | no_such_filter }}", "no_such_filter");
    check_stopped("{{ 'x'.no_such_method() }}", "no_such_method");
    assert!(ChatTemplate::new("{% include 'other' %}", None, SpecialTexts::default()).is_err());
}

#[test]
fn hostile_templates_are_stopped() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}.{% endfor %}\
        {% endfor %}{% endfor %}";
    check_stopped(loops, "fuel");
    check_stopped("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "recursion");
    check_stopped(
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "fuel",
    );
    check_stopped("{{ 'x' * 999999999 }}", "");
    check_stopped("{{ 'x'.replace('', 'y' * 99999).replace('y', 'z' * 99999) }}", "");
    check_stopped("{{ ' ' | indent(9999999999) }}", "");
    check_stopped("{% for m in range(99999999999) %}{% endfor %}", "range");
    let nested = "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    check_stopped(&format!("{nested}{{{{ ns.x | tojson }}}}"), "deep");
    check_stopped(&format!("{nested}{{{{ ns.x }}}}"), "deep");
    assert!(ChatTemplate::new(&"{% if x %}".repeat(9999), None, SpecialTexts::default()).is_err());
    assert!(ChatTemplate::new(&format!("{{{{ {} }}}}", "(".repeat(9999)), None, SpecialTexts::default()).is_err());
}

#[test]
fn variables_reach_the_template() {
    let source = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ tools is none }}|{{ documents is none }}|\
        {{ enable_thinking }}|{{ add_generation_prompt }}";
    let mut given = input(json!([]));
    assert_eq!(template(source).render(&given).unwrap(), "<s>|</s>||True|True||False");
    given.tools = Some(json!([{ "type": "function" }]));
    given.add_generation_prompt = true;
    given.extra.insert("enable_thinking".into(), json!(false));
    given.extra.insert("eos_token".into(), json!("<end>"));
    given.extra.insert("documents".into(), json!([]));
    assert_eq!(template(source).render(&given).unwrap(), "<s>|<end>||False|False|False|True");
}

#[test]
fn python_is_close_enough() {
    check(
        "{{ 'a.b.c'.rsplit('.') }} {{ ' a b '.rsplit(None, 1) }} {{ 'a'.rsplit('.') }}",
        json!([]),
        "['a', 'b', 'c'] [' a', 'b'] ['a']",
    );
    check("{{ 'prefix'.removeprefix('pre') }} {{ 'a=b=c'.partition('=') | join(',') }}", json!([]), "fix a,=,b=c");
    check(
        "{{ {'a': [1, 2.0, none, true, 'it\\'s', \"\\n\"]} }}",
        json!([]),
        "{'a': [1, 2.0, None, True, \"it's\", '\\n']}",
    );
    check(
        "{{ none is iterable }} {{ 'x' is sequence }} {{ {} is sequence }} {{ 1 is sequence }}",
        json!([]),
        "False True True False",
    );
    check("{{ strftime_now('%Y') | int > 2000 }}", json!([]), "True");
    check("{{ [{'b': 1, 'a': none}] | tojson }}", json!([]), r#"[{"b": 1, "a": null}]"#);
    check("{%- generation -%} a {%- endgeneration -%} b", json!([]), "ab");
}

#[test]
fn a_model_can_have_a_template_for_tools() {
    let vocabulary = Writer::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "a"])
        .f32s("tokenizer.ggml.scores", &[0.0; 4])
        .i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1])
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2);
    let from = |writer: Writer| {
        let gguf = writer.read().unwrap();
        ChatTemplate::from_gguf(&gguf, &Tokenizer::from_gguf(&gguf).unwrap()).unwrap()
    };
    assert!(from(vocabulary.clone()).is_none());

    let writer = vocabulary.string("tokenizer.chat_template", "{{ bos_token }}plain{{ eos_token }}");
    let only = from(writer.clone()).unwrap();
    let both = from(writer.string("tokenizer.chat_template.tool_use", "{{ tools | length }} tools")).unwrap();
    let mut given = input(json!([]));
    assert_eq!(both.render(&given).unwrap(), "<s>plain</s>");
    given.tools = Some(json!([]));
    assert_eq!(both.render(&given).unwrap(), "<s>plain</s>");
    given.tools = Some(json!([{}]));
    assert_eq!(both.render(&given).unwrap(), "1 tools");
    assert_eq!(only.render(&given).unwrap(), "<s>plain</s>");
}
