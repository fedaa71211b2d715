// Markdown that grows while it is shown.

import { parseBlocks } from "./blocks.js";
import { patchChildren } from "./dom.js";

/**
 * Shows a text that only grows. Blocks that can no longer change are parsed and built once; of the last ones only what
 * differs is touched. So the cost of a step depends on the last block, not on the whole text.
 */
export class GrowingMarkdown {
  /** Shows the text in `element`, which must be empty. */
  constructor(element, document = element.ownerDocument) {
    this.element = element;
    this.document = document;
    /** Where the blocks begin that may still change. */
    this.settled = 0;
    /** How many nodes stand before them. */
    this.nodes = 0;
    /** The trees of those that may still change. */
    this.trees = [];
  }

  /** Shows `text`, which begins with what was shown before. */
  update(text) {
    const blocks = parseBlocks(text.slice(this.settled));
    const trees = blocks.map(({ node }) => node);
    patchChildren(this.element, this.trees, trees, this.document, this.nodes);
    // The line that is still being written may yet turn out to belong to the block before, and as the second line of a
    // table it decides about the line before it too. So the last block that begins before both is not settled.
    const line = text.lastIndexOf("\n", text.lastIndexOf("\n") - 1) + 1 - this.settled;
    const open = Math.max(0, blocks.findLastIndex(({ start }) => start < line));
    this.settled += blocks[open]?.start ?? 0;
    this.nodes += open;
    this.trees = trees.slice(open);
  }
}
