const { parse, rawJSON } = JSON as unknown as {
  parse(text: string, reviver?: (key: string, value: unknown, context: { source: string }) => unknown): any
  rawJSON?: (text: string) => object
}

/** A number that a double would write otherwise, such as `2512292042121000001` or `1.10`. */
export class ExactNumber {
  readonly digits: string
  constructor(digits: string) {
    this.digits = digits
  }
  toString(): string {
    return this.digits
  }
  toJSON(): unknown {
    return rawJSON?.(this.digits) ?? Number(this.digits)
  }
}

/** Returns the number that a JSON text means: a double if that is written in the same way. */
export const exactNumber = (text: string): number | ExactNumber =>
  String(Number(text)) === text || !rawJSON ? Number(text) : new ExactNumber(text)

/** Parses JSON with ExactNumbers, or as `JSON.parse` does where engines are too old. Throws a SyntaxError. */
export const parseExactJson = (text: string): any =>
  parse(text, rawJSON && ((_key, value, { source }) => (typeof value === 'number' ? exactNumber(source) : value)))
