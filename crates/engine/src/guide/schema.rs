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

/// The schema as the compiler takes it, with the server's own options.
pub(super) fn prepare(schema: &Value, strict: bool) -> Result<Value, ConstraintError> {
    let mut counts = Counts::default();
    counts.add(schema, 0)?;
    let mut prepared = match schema {
        Value::Object(schema) => schema.clone(),
        // What allows everything, and the other one.
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(invalid("the schema `false` allows nothing")),
        _ => return Err(invalid("a schema must be an object")),
    };
    let options = json!({"whitespace_pattern": SPACE, "lenient": !strict, "coerce_one_of": !strict});
    prepared.insert("x-guidance".to_owned(), options);
    Ok(prepared.into())
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
        find(schema, "#", &["oneOf"])
    } else if strict && problem.contains("Unimplemented keys") {
        find(schema, "#", &UNSUPPORTED)
    } else {
        None
    };
    found.unwrap_or(error)
}

/// The first of these keywords in a schema, as an error.
fn find(schema: &Value, place: &str, keywords: &[&str]) -> Option<ConstraintError> {
    let schema = schema.as_object()?;
    if let Some(&keyword) = keywords.iter().find(|keyword| schema.contains_key(**keyword)) {
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
    named.chain(listed).chain(direct).find_map(|(place, schema)| find(schema, &place, keywords))
}

/// A name within a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
