import { firstBytes, storableText } from '../../core/api/text.ts'
import { MASK, MASKED_FROM, mask } from '../../identity/secrets/resolve.ts'

/** Bytes of a refusal's body that are shown. */
const SHOWN_BYTES = 16 * 1024

/** Longest value that is looked for in any mixture of spellings, in characters. */
const RESPELLED = 1024
/** A character is written with at most so many, such as `&#x002f;`. */
const SPELLED = 8

/** A value as it stands in an address, in a form and in JSON. */
const spellings = (value: string): string[] => {
  const text = value.toWellFormed()
  return [
    value,
    encodeURIComponent(text),
    // As addresses are written in their query.
    encodeURIComponent(text).replaceAll("'", '%27'),
    new URLSearchParams([['', text]]).toString().slice(1),
    JSON.stringify(value).slice(1, -1),
  ]
}

const hex = (code: number): string => `0*${code.toString(16)}`

/** A character as it is written in addresses, forms, JSON and HTML. */
function spelled(char: string): string {
  const code = char.codePointAt(0) as number
  const bytes = [...Buffer.from(char)].map(byte => `%${byte.toString(16).padStart(2, '0')}`).join('')
  const units = [...Array(char.length).keys()].map(at => `\\\\u0*${char.charCodeAt(at).toString(16)}`).join('')
  const escaped = char.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&')
  // Letters keep their case; how a code is written does not matter.
  const anyCase = [bytes, units, `&#x${hex(code)};`, `&#0*${code};`].map(text =>
    text.replace(/[a-f]/g, letter => `[${letter}${letter.toUpperCase()}]`),
  )
  return `(?:\\\\?${escaped}|${anyCase.join('|')}${char === ' ' ? '|\\+' : ''})`
}

/** A text of a stranger without the secret values that a request held, however it writes them. */
export function hide(text: string, values: readonly string[]): string {
  const plain = mask(text, [...new Set(values.flatMap(spellings))])
  return values
    .filter(({ length }) => length >= MASKED_FROM && length <= RESPELLED)
    .toSorted((one, other) => other.length - one.length)
    .reduce(
      (masked, value) => masked.replace(new RegExp([...value.toWellFormed()].map(spelled).join(''), 'gu'), MASK),
      plain,
    )
}

/** The start of a body as a text that may be shown and stored. */
export function shownBody(body: Buffer, values: readonly string[]): string {
  const most = 4 * SHOWN_BYTES
  const text = storableText(firstBytes(body, most))
  const hidden = hide(text, values)
  // A value that the cut goes through is not found: it may be all that stands at the end.
  const longest = Math.max(0, ...values.map(value => value.length)) * SPELLED
  return firstBytes(body.length > most ? hidden.slice(0, Math.max(0, hidden.length - longest)) : hidden, SHOWN_BYTES)
}
