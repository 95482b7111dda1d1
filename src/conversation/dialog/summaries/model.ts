import { z } from 'zod'

/** Summary of the messages of a conversation up to a position. */
export const ConversationSummary = z
  .object({
    conversation_id: z.string(),
    up_to_position: z.int().describe('Position of the last message that the summary covers'),
    text: z.string(),
    tokens: z.int().describe('Number of tokens of the text'),
    agent_id: z.string().describe('ID of the agent whose model wrote the text'),
    agent_version: z.int(),
    created_at: z.iso.datetime(),
  })
  .meta({ id: 'ConversationSummary' })
export type SummaryRow = z.output<typeof ConversationSummary>
