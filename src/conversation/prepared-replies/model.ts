import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'
import { raise } from '#core/base/errors.ts'

const fields = {
  name: z.string().trim().min(1).max(120).describe('Name, unique in the project, by which operators find it'),
  text: z
    .string()
    .trim()
    .min(1)
    .max(10_000)
    .describe('Text to insert. The console replaces `{{customer_name}}` by the name of the end user.'),
}

export const PreparedReply = record('PreparedReply', fields)

const example = { name: 'Refund booked', text: 'Dear {{customer_name}}, your refund is booked. It takes three days.' }

export const PreparedReplyInput = createBody('PreparedReplyInput', fields, ['name', 'text'], example)

export const PreparedReplyPatch = patchBody('PreparedReplyPatch', fields, example)

export const preparedReplyKind = kind({
  name: 'prepared_reply',
  plural: 'prepared_replies',
  prefix: 'prep',
  table: 'prepared_replies',
  record: PreparedReply,
  events: ['created', 'updated', 'deleted'],
  unique: { prepared_replies_name: ({ name }) => raise('NAME_CONFLICT', { meta: { field: 'name', name } }) },
})
export type PreparedReplyRow = z.output<typeof preparedReplyKind.row>
