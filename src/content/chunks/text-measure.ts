import { setImmediate as nextTurn } from 'node:timers/promises'

/** Measures a text in a unit: how many of them lie before a place, and which place lies behind so many of them. */
export type TextMeasure = {
  text: string
  /** Units before this offset in code units. */
  index(offset: number): number
  /** Offset in code units behind this many units; the end of the text when it has fewer. */
  offset(index: number): number
  /**
   * Measures the text up to an offset and so many units behind it, where that takes long, and gives other work of the
   * process its turn meanwhile. Who asks for places up to there then waits for nothing.
   */
  measure?(offset: number, units: number): Promise<void>
}

/** Code units that are counted between two turns of the event loop: 7 ms. */
const STEP = 1024 * 1024

/**
 * Counts in Unicode code points. It goes from the place it was asked about last, so that a walk along the text costs
 * its length once, however many places are asked for.
 */
export class CharacterMeasure implements TextMeasure {
  readonly text: string
  #at = 0
  #count = 0

  constructor(text: string) {
    this.text = text
  }

  index(offset: number): number {
    while (this.#at < offset) this.#forth()
    while (this.#at > offset) this.#back()
    return this.#count
  }

  offset(index: number): number {
    while (this.#count < index && this.#at < this.text.length) this.#forth()
    while (this.#count > index) this.#back()
    return this.#at
  }

  /** Blank text between two chunks may be as long as a text. */
  async measure(offset: number): Promise<void> {
    while (offset - this.#at > STEP) {
      this.index(this.#at + STEP)
      await nextTurn()
    }
  }

  #forth() {
    this.#at += isPair(this.text, this.#at) ? 2 : 1
    this.#count++
  }

  #back() {
    this.#at -= this.#at > 1 && isPair(this.text, this.#at - 2) ? 2 : 1
    this.#count--
  }
}

/** Whether the two code units from this offset are one code point. */
const isPair = (text: string, offset: number) =>
  (text.charCodeAt(offset) & 0xfc00) === 0xd800 && (text.charCodeAt(offset + 1) & 0xfc00) === 0xdc00
