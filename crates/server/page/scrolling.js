// Keeps the end of the conversation in view while it grows, until the reader scrolls away from it.

import { byId } from "./elements.js";

/** Distance from the end in pixels within which the view follows it. */
const NEAR_PX = 48;

export class Scrolling {
  constructor() {
    this.scroller = byId("scroller");
    this.following = true;
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    byId("to-end").addEventListener("click", () => this.toEnd());
    // What grows or shrinks below the view, such as the field for messages, moves the end.
    new ResizeObserver(() => this.follow()).observe(this.scroller);
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.following = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    byId("to-end").hidden = this.following;
  }

  /** After something has grown. */
  follow() {
    if (this.following) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.scrolled();
  }

  toEnd() {
    this.following = true;
    this.follow();
    byId("to-end").hidden = true;
  }
}
