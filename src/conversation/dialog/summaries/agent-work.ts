import { z } from 'zod'

/** Columns of work on a conversation after a turn: the agent of the turn, in its version. */
export const agentWorkColumns = { agent_id: z.string(), agent_version: z.int() }
export type AgentWorkColumns = z.output<z.ZodObject<typeof agentWorkColumns>>
