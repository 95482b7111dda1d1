import { sentImage } from './image-size.ts'
import { type Call, first, type Rule } from './rules.ts'

const FORMATS = new Set(['image/png', 'image/jpeg', 'image/gif', 'image/webp'])
const MAX_BYTES = 20_000_000

/** The rule for images of the APIs of OpenAI, which check the bytes and not at the declared type. */
export const openaiImageRule = (images: (call: Call) => readonly { type: string; data: string }[]): Rule => ({
  name: 'image format',
  source: 'S',
  date: '2026-01',
  message:
    "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', 'jpeg', 'gif', 'webp'].",
  error: { code: 'invalid_image_format' },
  breach: first(function* (call) {
    for (const { type, data } of images(call)) {
      const sent = sentImage(data)
      const isTaken = FORMATS.has(sent.type ?? type) && !sent.isAnimated && data.length * 0.75 <= MAX_BYTES
      if (!isTaken) yield {}
    }
  }),
})
