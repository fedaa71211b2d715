// Shows what openapi.json says, for people. Text goes in as text.

import { byId, make } from "./elements.js";

// Schemas may contain themselves; deeper than this, the name has to do.
const DEPTH_MAX = 4;
const METHODS = ["get", "post", "put", "patch", "delete"];

try {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  show(await answer.json());
} catch (error) {
  const problem = byId("problem");
  problem.textContent = `The description could not be loaded: ${error.message}.`;
  problem.hidden = false;
}

function show(api) {
  byId("title").textContent = `${api.info.title} ${api.info.version}`;
  byId("summary").textContent = api.info.summary ?? "";
  byId("description").append(...prose(api.info.description));
  const operations = Object.entries(api.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, ...item[method] })),
  );
  for (const { name, description } of api.tags) {
    const own = operations.filter((operation) => operation.tags.includes(name));
    byId("contents").append(make("h2", {}, name), ...own.map(({ operationId, path, method }) => make("a", { href: `#${operationId}` }, `${method.toUpperCase()} ${path}`)));
    byId("operations").append(make("h2", {}, name), make("p", { class: "muted" }, ...prose(description)), ...own.map((operation) => article(api, operation)));
  }
  // The place that the address names has only come about now.
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named) location.replace(location.hash);
}

/** One operation. */
function article(api, operation) {
  const { operationId, path, method, summary, description, parameters = [], requestBody, responses } = operation;
  const body = requestBody?.content["application/json"];
  return make(
    "article",
    { class: "operation", id: operationId },
    make("h3", {}, make("span", { class: `method ${method}` }, method), make("a", { href: `#${operationId}` }, path)),
    make("p", {}, summary ?? ""),
    description ? make("p", { class: "muted" }, ...prose(description)) : null,
    parameters.length ? section("Parameters", list(parameters.map((it) => field(api, it.name, { description: it.description, ...it.schema }, it.required, 1)))) : null,
    body ? section("Request", schemaFields(api, body.schema, 0)) : null,
    body?.example ? section("Example", make("pre", { tabindex: "0" }, example(path, body.example))) : null,
    section("Answers", ...Object.entries(responses).map(([status, answer]) => response(api, status, answer))),
  );
}

function section(title, ...content) {
  return make("section", {}, make("h4", {}, title), ...content);
}

/** A text in which names stand between backticks. */
function prose(text = "") {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

/** What to type into a shell to try it. */
function example(path, body) {
  const text = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${location.origin}${path} -H 'Content-Type: application/json' -d '${text}'`;
}

function response(api, status, { description, content = {} }) {
  const kinds = Object.entries(content).map(([type, { schema }]) =>
    make("details", {}, make("summary", {}, type), schemaFields(api, schema, 0) ?? make("p", { class: "muted" }, kind(schema))),
  );
  return make("div", {}, make("p", {}, make("code", {}, status === "default" ? "otherwise" : status), " ", ...prose(description)), ...kinds);
}

/** The fields of an object, of the items of a list, or of what else a value may be; `null` if there are none. */
function schemaFields(api, schema, depth) {
  const found = resolve(api, schema);
  if (found.properties) {
    const required = found.required ?? [];
    return list(Object.entries(found.properties).map(([name, it]) => field(api, name, it, required.includes(name), depth + 1)));
  }
  if (found.items) return schemaFields(api, found.items, depth);
  const parts = (found.anyOf ?? []).map((choice) => schemaFields(api, choice, depth)).filter((part) => part);
  return parts.length ? make("div", {}, ...parts) : null;
}

function list(entries) {
  return make("dl", { class: "fields" }, ...entries);
}

/** A field, and folded away what is in it. */
function field(api, name, schema, required, depth) {
  const found = resolve(api, schema);
  const about = schema.description ?? found.description;
  const inner = depth < DEPTH_MAX ? schemaFields(api, schema, depth) : null;
  return make(
    "div",
    {},
    make("dt", {}, make("code", {}, name), make("span", { class: "kind" }, kind(found, api)), required ? make("span", { class: "needed" }, "required") : null),
    about ? make("dd", {}, ...prose(about)) : null,
    inner ? make("dd", {}, make("details", {}, make("summary", {}, "Fields"), inner)) : null,
  );
}

function resolve(api, schema) {
  return schema.$ref ? api.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

/** What a value may be, in a few words. */
function kind(schema, api) {
  if (schema.$ref && api) return kind(resolve(api, schema));
  if (schema.anyOf) return [...new Set(schema.anyOf.map((choice) => kind(choice, api)))].join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const types = [schema.type ?? "anything"].flat().filter((type) => type !== "null");
  const words = types.map((type) => (type === "array" && schema.items ? `list of ${kind(schema.items, api)}` : type)).join(" or ");
  const { minimum, maximum } = schema;
  if (minimum !== undefined && maximum !== undefined) return `${words}, ${minimum} to ${maximum}`;
  if (minimum !== undefined) return `${words}, at least ${minimum}`;
  return maximum !== undefined ? `${words}, at most ${maximum}` : words;
}
