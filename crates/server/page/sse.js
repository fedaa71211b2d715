// Server-sent events, as https://html.spec.whatwg.org/multipage/server-sent-events.html defines them.

/** Longest event in characters. */
const EVENT_LENGTH_MAX = 1 << 22;

/** Takes a stream of events in any pieces. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.data = [];
    this.length = 0;
    this.first = true;
  }

  /** Takes the next piece and returns the data of all events that it completes. */
  push(piece) {
    if (this.first && piece) {
      piece = piece.replace(/^\ufeff/, "");
      this.first = false;
    }
    let text = this.rest + piece;
    // A carriage return at the end may be half of a line break.
    const held = text.endsWith("\r") ? "\r" : "";
    if (held) text = text.slice(0, -1);
    const lines = text.split(/\r\n|\n|\r/);
    this.rest = lines.pop() + held;
    const events = [];
    for (const line of lines) this.line(line, events);
    if (this.rest.length + this.length > EVENT_LENGTH_MAX) throw new Error("an event of the stream is too long");
    return events;
  }

  line(line, events) {
    if (line === "") {
      if (this.data.length) events.push(this.data.join("\n"));
      this.data = [];
      this.length = 0;
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field !== "data") return;
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    this.data.push(value);
    this.length += value.length;
  }
}
