import { setImmediate as yieldToEventLoop } from 'node:timers/promises'

/** Converts between offsets in code units and counts of another unit. */
export type TextMeasure = {
  text: string
  /** Returns the number of units before an offset. */
  index(offset: number): number
  /** Returns the offset after a number of units; the end of the text if it has fewer. */
  offset(index: number): number
  /** Measures the text up to `units` units after an offset in advance, yielding to the event loop. */
  measure?(offset: number, units: number): Promise<void>
}

/** Code units counted between yields to the event loop, which take 7 ms. */
const STEP = 1024 * 1024

/**
 * Measures in Unicode code points. Moves from the last requested position, so that sequential access costs one pass
 * over the text.
 */
export class CharacterMeasure implements TextMeasure {
  readonly text: string
  #at = 0
  #count = 0

  constructor(text: string) {
    this.text = text
  }

  index(offset: number): number {
    while (this.#at < offset) this.#forward()
    while (this.#at > offset) this.#back()
    return this.#count
  }

  offset(index: number): number {
    while (this.#count < index && this.#at < this.text.length) this.#forward()
    while (this.#count > index) this.#back()
    return this.#at
  }

  /** Counts in steps, because blank text between two chunks may be long. */
  async measure(offset: number): Promise<void> {
    while (offset - this.#at > STEP) {
      this.index(this.#at + STEP)
      await yieldToEventLoop()
    }
  }

  #forward() {
    this.#at += isPair(this.text, this.#at) ? 2 : 1
    this.#count++
  }

  #back() {
    this.#at -= this.#at > 1 && isPair(this.text, this.#at - 2) ? 2 : 1
    this.#count--
  }
}

/** Whether the two code units at an offset are a surrogate pair. */
const isPair = (text: string, offset: number) =>
  (text.charCodeAt(offset) & 0xfc00) === 0xd800 && (text.charCodeAt(offset + 1) & 0xfc00) === 0xdc00
