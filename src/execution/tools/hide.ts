import { firstBytes, storableText } from '../../core/api/text.ts'
import { mask } from '../../identity/secrets/resolve.ts'

/** Bytes of a refusal's body that are shown. */
const SHOWN_BYTES = 16 * 1024

/** A value as it stands in an address, in a form and in JSON, too. */
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

/** A text of a stranger without the secret values that a request held. */
export const hide = (text: string, values: readonly string[]): string =>
  mask(text, [...new Set(values.flatMap(spellings))])

/** The start of a body as a text that may be shown and stored. */
export const shownBody = (body: Buffer, values: readonly string[]): string =>
  firstBytes(hide(storableText(firstBytes(body, 4 * SHOWN_BYTES)), values), SHOWN_BYTES)
