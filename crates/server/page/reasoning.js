// Models that think write `<think>...</think>` before their answer.

const START = "<think>";
const END = "</think>";

/** Parts a text, which may still grow unless it is `complete`, into `{reasoning, answer, thinking}`. */
export function splitReasoning(text, complete) {
  const trimmed = text.trimStart();
  if (!complete && trimmed.length < START.length && START.startsWith(trimmed)) {
    // Too little to tell. Nothing is shown that would have to be taken back.
    return { reasoning: "", answer: "", thinking: false };
  }
  const begins = trimmed.startsWith(START);
  const end = text.indexOf(END);
  if (end < 0 && begins) return { reasoning: trimmed.slice(START.length).trim(), answer: "", thinking: !complete };
  if (end < 0) return { reasoning: "", answer: text, thinking: false };
  // Some templates write the start themselves, so that the answer has only the end.
  const reasoning = begins ? text.slice(text.length - trimmed.length + START.length, end) : text.slice(0, end);
  return { reasoning: reasoning.trim(), answer: text.slice(end + END.length).trimStart(), thinking: false };
}
