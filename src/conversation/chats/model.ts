import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { createBody, patchBody, record } from '#core/api/record.ts'

const id = z.string().min(1).max(255)

const fields = {
  ai_provider_id: id.nullable().describe('ID of the AI provider. Null for the default model route of the project.'),
  name: z.string().trim().min(1).max(255).nullable().describe('Display name'),
  instructions: z.string().max(65_536).nullable().describe('System prompt of every completion'),
  model: id
    .nullable()
    .describe(
      'Model of the AI provider. Null for its default_model, and without an AI provider, because targets of model routes have models.',
    ),
}

export const Chat = record('Chat', fields)
export const ChatInput = createBody('ChatInput', fields, [], {
  ai_provider_id: 'aip_01k5p3vd7r9hj2x8m4qcw6tz0e',
  name: 'Drafts',
  model: 'gpt-5-mini',
})
export const ChatPatch = patchBody('ChatPatch', fields)

export const chatKind = kind({
  name: 'chat',
  prefix: 'chat',
  table: 'chats',
  missing: 'CHAT_NOT_FOUND',
  record: Chat,
  references: [{ kind: 'ai_provider', column: 'ai_provider_id', on_delete: 'block' }],
  events: ['created', 'updated', 'deleted'],
})
export type ChatRow = z.output<typeof chatKind.row>
