import { z } from 'zod'
import { parse } from '#core/api/validate.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import type { AttachedFile } from '../providers/model-messages.ts'

/** Inputs of decisions. */

/** Limit for all inputs of one request, as JSON. */
export const MAX_DECISION_INPUT_BYTES = 10 * 1024 * 1024

const IMAGE = /^data:(image\/[\w.+-]{1,100});base64,/
/** Matches a character outside base64; matching the whole text instead would store a position for each character. */
const NOT_BASE64 = /[^A-Za-z0-9+/]/

type Image = Pick<AttachedFile, 'media_type' | 'data_base64'>

/** Returns the image in a data URL; null for anything else. */
function parseImage(url: string): Image | null {
  const [prefix, media_type] = IMAGE.exec(url) ?? []
  if (prefix === undefined) return null
  const data_base64 = url.slice(prefix.length)
  const digits = data_base64.endsWith('==') ? -2 : data_base64.endsWith('=') ? -1 : undefined
  const body = data_base64.slice(0, digits)
  return body === '' || NOT_BASE64.test(body) ? null : { media_type, data_base64 }
}

const Part = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('input_text'), text: z.string() }),
  z.strictObject({
    type: z.literal('input_image'),
    image_url: z.string().refine(url => parseImage(url) !== null, 'must be an image as a data URL in base64'),
  }),
])

const Messages = z.array(
  z.strictObject({ role: z.literal('user'), content: z.union([z.string(), z.array(Part).min(1)]) }),
)

/** Whether an input is a message list: a non-empty list whose entries all have a role. */
const isMessages = (value: unknown): value is object[] =>
  Array.isArray(value) &&
  value.length > 0 &&
  value.every(entry => typeof entry === 'object' && entry !== null && Object.hasOwn(entry, 'role'))

/**
 * Validates the inputs of a request and returns them as JSON.
 * @param pathOf path of each input in the request
 * @throws VALIDATION_FAILED for invalid messages and for inputs that exceed the limit individually or together
 */
export function inputTexts(values: readonly unknown[], pathOf: (index: number) => string): string[] {
  let remaining = MAX_DECISION_INPUT_BYTES
  return values.map((value, index) => {
    const path = pathOf(index)
    const text = JSON.stringify(value)
    remaining -= Buffer.byteLength(text)
    if (remaining < 0)
      raiseInvalid({ code: 'TOO_BIG', path, message: `must be at most ${MAX_DECISION_INPUT_BYTES} bytes as JSON` })
    if (isMessages(value)) parse(Messages, value, path)
    return text
  })
}

/** Returns an input as presented to an agent: texts joined by blank lines, and images. Other JSON is indented. */
export function shownInput(value: unknown): { text: string; images: Image[] } {
  if (typeof value === 'string') return { text: value, images: [] }
  if (!isMessages(value)) return { text: JSON.stringify(value, null, 2), images: [] }
  const parts = (value as z.output<typeof Messages>).flatMap(({ content }) =>
    typeof content === 'string' ? [{ type: 'input_text' as const, text: content }] : content,
  )
  return {
    text: parts.flatMap(part => (part.type === 'input_text' ? [part.text] : [])).join('\n\n'),
    images: parts.flatMap(part => (part.type === 'input_image' ? [parseImage(part.image_url) as Image] : [])),
  }
}
