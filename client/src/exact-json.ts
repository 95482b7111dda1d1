/** JSON whose numbers keep their digits: the service keeps them, and a double would round some. */

type Reviver = (this: unknown, key: string, value: unknown, context: { source?: string }) => unknown

const { rawJSON } = JSON as unknown as { rawJSON?: (text: string) => object }

/** A number with more digits than a double keeps, or with digits that a double loses, such as `1.10`. */
export class ExactNumber {
  readonly digits: string

  constructor(digits: string) {
    this.digits = digits
  }

  toString(): string {
    return this.digits
  }

  valueOf(): number {
    return Number(this.digits)
  }

  toJSON(): unknown {
    return rawJSON ? rawJSON(this.digits) : Number(this.digits)
  }
}

/** Returns the number that a JSON text means: a double if that is written in the same way. */
export function exactNumber(text: string): number | ExactNumber {
  const double = Number(text)
  return String(double) === text || !rawJSON ? double : new ExactNumber(text)
}

const keepDigits: Reviver = (_key, value, { source }) =>
  typeof value === 'number' && source !== undefined ? exactNumber(source) : value

/**
 * Parses JSON; numbers that a double would write otherwise become ExactNumbers, which `JSON.stringify` writes with the same
 * digits. Before Node 22, Chrome 114, Firefox 135 and Safari 18.4 it is `JSON.parse`. Throws a SyntaxError.
 */
export const parseExactJson = (text: string): any =>
  rawJSON ? JSON.parse(text, keepDigits as Parameters<typeof JSON.parse>[1]) : JSON.parse(text)
