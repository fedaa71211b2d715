//! JSON schemas: their bounds, the form in which the compiler gets them, and what it cannot do.

use serde_json::{Map, Value, json};

use super::constraint::{ConstraintError, within};

/// How deep schemas may be nested.
const DEPTH_MAX: usize = 64;
/// Most values in a schema.
const VALUES_MAX: usize = 20_000;
/// Most references in a schema. The compiler goes one deeper for each that follows another.
const REFERENCES_MAX: usize = 1000;

/// The space that a model may put between two parts of a JSON text: a line of it at most, so that no answer is spaces alone.
const SPACE: &str = r"(?: |\t|\r?\n[ \t]{0,60})";

/// Keywords of JSON Schema that the compiler does not know.
const UNSUPPORTED: [&str; 18] = [
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Where schemas stand in others: by name, in lists, and directly.
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];
const LISTED: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
const DIRECT: [&str; 3] = ["additionalItems", "additionalProperties", "items"];

/// The days that there are: the compiler's format knows no years without a 29th of February. Of the years that are divisible
/// by 100, none has one here.
const DAYS: &str = concat!(
    r"^(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])-02-29",
    r"|[0-9]{4}-02-(?:[01][0-9]|2[0-8])|[0-9]{4}-(?:0[13-9]|1[0-2])-[0-9]{2})"
);
/// Times without leap seconds, which the compiler's format allows at any time of the day.
const SECONDS: &str = "^[^:]*:[^:]*:[0-5]";

/// The schema as the compiler takes it, with the server's own options.
pub(super) fn prepare(schema: &Value, strict: bool) -> Result<Value, ConstraintError> {
    let mut counts = Counts::default();
    counts.add(schema, 0)?;
    if strict {
        find(schema, "#", &|schema| needs_others(schema).then_some("minProperties")).map_or(Ok(()), Err)?;
    }
    let mut schema = schema.clone();
    refine(&mut schema);
    let mut prepared = match schema {
        Value::Object(schema) => schema,
        // What allows everything, and the other one.
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(invalid("the schema `false` allows nothing")),
        _ => return Err(invalid("a schema must be an object")),
    };
    let options = json!({"whitespace_pattern": SPACE, "lenient": !strict, "coerce_one_of": !strict});
    prepared.insert("x-guidance".to_owned(), options);
    Ok(prepared.into())
}

/// Whether an object must have more properties than it must have by name. The compiler counts those that have the same name,
/// of which readers keep one.
fn needs_others(schema: &Map<String, Value>) -> bool {
    let required = schema.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    schema.get("minProperties").and_then(Value::as_u64).is_some_and(|least| least > required as u64)
}

/// Narrows formats that the compiler takes too widely.
fn refine(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    let narrower: &[&str] = match schema.get("format").and_then(Value::as_str) {
        Some("date-time") => &[DAYS, SECONDS],
        Some("date") => &[DAYS],
        Some("time") => &[SECONDS],
        _ => &[],
    };
    if !narrower.is_empty() {
        let patterns = narrower.iter().map(|pattern| json!({"pattern": pattern}));
        match schema.get_mut("allOf").and_then(Value::as_array_mut) {
            Some(all) => all.extend(patterns),
            None => drop(schema.insert("allOf".to_owned(), patterns.collect())),
        }
    }
    for (keyword, inside) in schema {
        match inside {
            Value::Object(schemas) if NAMED.contains(&keyword.as_str()) => schemas.values_mut().for_each(refine),
            Value::Array(schemas) if LISTED.contains(&keyword.as_str()) => schemas.iter_mut().for_each(refine),
            inside if DIRECT.contains(&keyword.as_str()) => refine(inside),
            _ => {}
        }
    }
}

fn invalid(problem: &str) -> ConstraintError {
    ConstraintError::Invalid { problem: problem.to_owned() }
}

#[derive(Default)]
struct Counts {
    values: usize,
    references: usize,
}

impl Counts {
    fn add(&mut self, value: &Value, depth: usize) -> Result<(), ConstraintError> {
        self.values += 1;
        within(depth, DEPTH_MAX, "levels")?;
        within(self.values, VALUES_MAX, "or more values")?;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.add(item, depth + 1)),
            Value::Object(entries) => {
                self.references += usize::from(entries.contains_key("$ref"));
                within(self.references, REFERENCES_MAX, "or more references")?;
                entries.values().try_for_each(|entry| self.add(entry, depth + 1))
            }
            _ => Ok(()),
        }
    }
}

/// Finds the keyword behind an error of the compiler, which tells its name at best, but not where it stands.
pub(super) fn explain(schema: &Value, strict: bool, error: ConstraintError) -> ConstraintError {
    let ConstraintError::Invalid { problem } = &error else { return error };
    let found = if problem.contains("oneOf constraints are not supported") {
        find(schema, "#", &|schema| schema.contains_key("oneOf").then_some("oneOf"))
    } else if strict && problem.contains("Unimplemented keys") {
        find(schema, "#", &|schema| UNSUPPORTED.into_iter().find(|keyword| schema.contains_key(*keyword)))
    } else {
        None
    };
    found.unwrap_or(error)
}

/// The first keyword in a schema that `fault` finds, as an error.
fn find(
    schema: &Value,
    place: &str,
    fault: &dyn Fn(&Map<String, Value>) -> Option<&'static str>,
) -> Option<ConstraintError> {
    let schema = schema.as_object()?;
    if let Some(keyword) = fault(schema) {
        return Some(ConstraintError::Keyword { keyword: keyword.to_owned(), place: place.to_owned() });
    }
    let inside = |keyword: &str| format!("{place}/{keyword}");
    let named = NAMED.iter().filter_map(|keyword| Some((keyword, schema.get(*keyword)?.as_object()?)));
    let named = named.flat_map(|(keyword, schemas)| {
        schemas.iter().map(move |(name, schema)| (format!("{}/{}", inside(keyword), escaped(name)), schema))
    });
    let listed = LISTED.iter().filter_map(|keyword| Some((keyword, schema.get(*keyword)?.as_array()?)));
    let listed = listed.flat_map(|(keyword, schemas)| {
        schemas.iter().enumerate().map(move |(index, schema)| (format!("{}/{index}", inside(keyword)), schema))
    });
    let direct = DIRECT.iter().filter_map(|keyword| Some((inside(keyword), schema.get(*keyword)?)));
    named.chain(listed).chain(direct).find_map(|(place, schema)| find(schema, &place, fault))
}

/// A name within a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_narrowed_wherever_they_stand() {
        let date = json!({"type": "string", "format": "date"});
        let mut schema =
            json!({"properties": {"at": date}, "items": [date, {"anyOf": [{"format": "time", "allOf": [true]}]}]});
        refine(&mut schema);
        assert_eq!(schema["properties"]["at"]["allOf"], json!([{"pattern": DAYS}]));
        assert_eq!(schema["items"][0]["allOf"], json!([{"pattern": DAYS}]));
        assert_eq!(schema["items"][1]["anyOf"][0]["allOf"], json!([true, {"pattern": SECONDS}]));
        // Names are no keywords.
        let mut named = json!({"properties": {"format": {"const": "date"}}, "enum": [{"format": "date"}]});
        let before = named.clone();
        refine(&mut named);
        assert_eq!(named, before);
    }

    #[test]
    fn properties_without_a_name_cannot_be_counted() {
        assert!(prepare(&json!({"minProperties": 1}), true).is_err());
        assert!(prepare(&json!({"minProperties": 1}), false).is_ok());
        assert!(prepare(&json!({"items": {"minProperties": 1, "required": ["a"]}}), true).is_ok());
    }
}
