import { z } from 'zod'

const MAX_TEXT = 262_144
/** Most parts of a message. */
export const MAX_PARTS = 16

/** Text of a message. */
export const MessageText = z.string().min(1).max(MAX_TEXT)

const id = z.string().min(1).max(255)
const type = <const T extends string>(value: T) => z.literal(value).describe('Type of the part')

const PartInput = z.discriminatedUnion('type', [
  z.strictObject({ type: type('text'), text: MessageText.describe('Text') }),
  z.strictObject({
    type: type('image'),
    file_id: id.describe('ID of a PNG, JPEG, WebP or GIF file of the project'),
    alt: z.string().min(1).max(1000).optional().describe('Description of the image for readers and text models'),
  }),
  z.strictObject({
    type: type('file'),
    file_id: id.describe('ID of a file of the project: an image, audio, a PDF, or a file of which the text is sent'),
  }),
  z.strictObject({
    type: type('document'),
    document_id: id.describe('ID of a document of the project; its text is part of the message'),
  }),
])

/** A part of a message, as sent and as stored. */
export type MessagePart = z.output<typeof PartInput>
/** A part with a file. */
export type MediaPart = Extract<MessagePart, { file_id: string }>

/** Parts of a message in a body. */
export const PartsInput = z
  .array(PartInput)
  .min(1)
  .max(MAX_PARTS)
  .refine(parts => parts.some(part => part.type !== 'document'), 'must contain a text, an image or a file')
  .refine(
    parts => parts.reduce((sum, part) => sum + (part.type === 'text' ? part.text.length : 0), 0) <= MAX_TEXT,
    `must have texts of at most ${MAX_TEXT} characters in total`,
  )
  .refine(parts => parts.some(part => part.type !== 'text' || part.text.trim() !== ''), 'must not be blank')
  .describe('Texts, images, files and documents in their order. Cannot be combined with message.')

/** Parts of a message in responses. */
export const MessageParts = z
  .array(
    z.object({
      type: z.enum(['text', 'image', 'file', 'document']),
      text: z.string().optional(),
      file_id: z.string().optional(),
      alt: z.string().optional().describe('Description of the image'),
      document_id: z.string().optional(),
      gone: z.literal(true).optional().describe('Set if the file no longer exists'),
    }),
  )
  .nullable()
  .describe('Texts, images, files and documents of the message. Null for a message that was sent as one text.')
