/**
 * JSON whose numbers keep their digits. A number that a double would write otherwise, such as `2512292042121000001` or
 * `1.10`, is an ExactNumber, which `JSON.stringify` writes with the same digits. PostgreSQL keeps the digits of json and jsonb.
 */

declare global {
  interface JSON {
    parse(
      text: string,
      reviver: (this: unknown, key: string, value: unknown, context: { source: string }) => unknown,
    ): any
    /** Returns a value that is written as the given JSON text of a primitive. */
    rawJSON(text: string): object
  }
}

const INTEGER = /^-?\d+$/

/** Longest integer that is exact although its double has the same value: `JSON.stringify` writes it with an exponent. */
const MAX_INTEGER_CHARS = 40

/** A number with more digits than a double keeps. */
export class ExactNumber {
  readonly digits: string

  constructor(digits: string) {
    this.digits = digits
  }

  toString(): string {
    return this.digits
  }

  toJSON(): object {
    return JSON.rawJSON(this.digits)
  }

  /** Returns the nearest double; null for an integer that it would change. */
  toNearest(): number | null {
    return INTEGER.test(this.digits) ? this.toNumber() : Number(this.digits)
  }

  /** Returns the double of the same value; null if there is none. */
  toNumber(): number | null {
    const { digits } = this
    const double = Number(digits)
    if (!Number.isFinite(double)) return null
    const isEqual =
      digits.length <= MAX_INTEGER_CHARS && INTEGER.test(digits)
        ? BigInt(digits) === BigInt(double)
        : decimalOf(String(double)) === decimalOf(digits)
    return isEqual ? double : null
  }
}

/** Whether a JSON value is an object. */
export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof ExactNumber)

/** Most digits of a number that is stored; PostgreSQL refuses more than 131,072. */
const MAX_DIGITS = 1000

/** Bounds of the size of a double that is stored: the database writes 1e300 out, and each reader gets 301 digits for it. */
const [SMALLEST, TOO_LARGE] = [1e-40, 1e40]

/** Whether a double is stored, in few digits. */
export const isStorableDouble = (double: number): boolean =>
  double === 0 || (Math.abs(double) >= SMALLEST && Math.abs(double) < TOO_LARGE)

/** Whether the database stores a number with the same digits: it writes out exponents. */
export const isStorableNumber = ({ digits }: ExactNumber): boolean => digits.length <= MAX_DIGITS && !/e/i.test(digits)

/** Returns the digits of a decimal without leading and trailing zeros, and its exponent. Equal for equal values. */
function decimalOf(text: string): string {
  const [mantissa, exponent = '0'] = text.toLowerCase().split('e')
  const sign = mantissa.startsWith('-') ? '-' : ''
  const [whole, fraction = ''] = mantissa.replace('-', '').split('.')
  const digits = (whole + fraction).replace(/^0+/, '')
  const significant = withoutTrailingZeros(digits)
  if (significant === '') return '0'
  return `${sign}${significant}e${Number(exponent) - fraction.length + digits.length - significant.length}`
}

function withoutTrailingZeros(digits: string): string {
  let end = digits.length
  while (digits[end - 1] === '0') end--
  return digits.slice(0, end)
}

/** Matches every text with a number that a double may write otherwise: of 16 characters, with a last zero, or an exponent. */
const UNUSUAL = /(?:^|[[:,\s-])\d(?:[\d.]{15}|\d*\.\d*0(?:[\s,\]}]|$)|[\d.]*[eE](?:\+?\d|-\d{3}))/

/** Whether a double is written as its text, or with an exponent and the same value. */
function isWrittenAlike(text: string, double: number): boolean {
  const written = String(double)
  if (written === text) return true
  const isInteger = !/[.eE]/.test(text)
  const hasExponent = /e/i.test(text) || (written.includes('e') && !(isInteger && text.length <= MAX_INTEGER_CHARS))
  return hasExponent && Number.isFinite(double) && decimalOf(written) === decimalOf(text)
}

/**
 * Returns the number that a JSON text means. A large integer with an exponent has the digits with which the database writes
 * it, so that its size is the same before and after it is stored.
 */
export function numberOf(text: string): number | ExactNumber {
  const double = Number(text)
  if (!isWrittenAlike(text, double)) return new ExactNumber(text)
  const written = String(double)
  return written.includes('e+') && isStorableDouble(double) ? new ExactNumber(writtenOut(written)) : double
}

/** Returns the digits of an integer that is written with a positive exponent. */
function writtenOut(text: string): string {
  const [mantissa, exponent] = text.split('e')
  const [whole, fraction = ''] = mantissa.split('.')
  return whole + fraction.padEnd(Number(exponent), '0')
}

const keepDigits = (_key: string, value: unknown, { source }: { source: string }): unknown =>
  typeof value === 'number' ? numberOf(source) : value

/** Whether a text may have such numbers. */
export const hasUnusualNumbers = (text: string): boolean => UNUSUAL.test(text)

/** Parses JSON; numbers that a double would write otherwise become ExactNumbers. Throws a SyntaxError. */
export const parseExactJson = (text: string): any =>
  UNUSUAL.test(text) ? JSON.parse(text, keepDigits) : JSON.parse(text)

/** Returns a JSON value with a double, or what `replace` returns, in place of each ExactNumber; the same value if it has none. */
export function withDoubles(
  value: unknown,
  replace: (exact: ExactNumber) => unknown = each => Number(each.digits),
): unknown {
  if (value instanceof ExactNumber) return replace(value)
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) {
    const items = value.map(each => withDoubles(each, replace))
    return items.some((item, index) => item !== value[index]) ? items : value
  }
  const entries = Object.entries(value)
  const replaced = entries.map(([key, each]): [string, unknown] => [key, withDoubles(each, replace)])
  return replaced.some(([, each], index) => each !== entries[index][1]) ? Object.fromEntries(replaced) : value
}

/** Returns the ExactNumbers in a JSON value of any depth. */
export function exactNumbersIn(value: unknown): Set<ExactNumber> {
  const found = new Set<ExactNumber>()
  const rest = [value]
  for (let each = rest.pop(); each !== undefined; each = rest.pop()) {
    if (each instanceof ExactNumber) found.add(each)
    else if (typeof each === 'object' && each !== null)
      for (const inner of Object.values(each)) if (typeof inner === 'object' && inner !== null) rest.push(inner)
  }
  return found
}

/** Whether two JSON primitives are equal: numbers by their value. */
export function isEqualPrimitive(left: unknown, right: unknown): boolean {
  if (!(left instanceof ExactNumber || right instanceof ExactNumber)) return left === right
  const [first, second] = [left, right].map(each =>
    each instanceof ExactNumber || Number.isFinite(each) ? decimalOf(String(each)) : null,
  )
  return first !== null && first === second
}
