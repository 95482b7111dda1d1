import { AppError, raise } from '../../../core/api/errors.ts'
import { authorsRights, requirePermitted } from '../../../core/iam/access.ts'
import { writeFact } from '../../../memory/entries/write.ts'
import { MAX_CONTENT } from '../../../memory/memories/model.ts'
import { memoryStoreKind } from '../../../memory/stores/model.ts'
import { type KnowledgeConfig, mergedKnowledge } from '../../agents/knowledge.ts'
import { withToolDefaults } from '../../tools/model.ts'
import { WRITE_MEMORY } from '../journal/open-step.ts'
import { actingCaller, actorOfTurn } from '../loop/acting-caller.ts'
import type { TurnAttempt } from '../loop/turn-attempt.ts'
import { type GenerationRow, generationKind, type TurnData } from '../model.ts'
import type { TurnTool, Unavailable } from './toolbox.ts'

const WRITE = 'memories:CreateMemoryEntry'

const DESCRIPTION =
  'Remember a fact beyond this conversation. Write one self-contained statement; what is known already is not written twice.'

const SCHEMA = {
  type: 'object',
  properties: {
    content: { type: 'string', minLength: 1, maxLength: MAX_CONTENT, description: 'The fact, in one or two sentences' },
  },
  required: ['content'],
  additionalProperties: false,
}

/** The tool by which the turns of an agent write to its memory store; null for those that may not. */
export async function writeMemoryTool(turn: TurnAttempt, work: TurnData): Promise<TurnTool | Unavailable | null> {
  const { agent, generation, services } = turn
  const config: KnowledgeConfig = mergedKnowledge(agent.knowledge_config ?? {}, work.overrides.knowledge_config)
  const storeId = config.write_memory_store_id ?? null
  // An agent of another project writes nothing for that.
  if (storeId === null || agent.project_id !== generation.project_id) return null
  const store = await memoryStoreKind.find(services.pool, storeId)
  if (store?.project_id !== agent.project_id)
    return { tool_id: null, tool_name: WRITE_MEMORY, tool_type: null, reason: 'memory store not found' }
  const definition = withToolDefaults({ name: WRITE_MEMORY, description: DESCRIPTION, parameters: SCHEMA })
  return {
    name: WRITE_MEMORY,
    description: DESCRIPTION,
    schema: SCHEMA,
    checked: null,
    callable: { ...definition, id: null, project_id: agent.project_id, guardrail_ids: null },
    action: null,
    // What is written already is skipped.
    repeatable: true,
    justified: [],
    perform: input => write(turn, config, { memory_store_id: storeId, content: input.content as string }),
  }
}

/** Where a fact comes from that is stated in a turn, whose it is, and in whose name. */
export const factProvenance = (turn: GenerationRow) => {
  const { id, agent_id, conversation_id } = turn
  return {
    source_type: conversation_id === null ? 'manual' : 'conversation',
    source_id: conversation_id,
    generation_id: id,
    conversation_id,
    actor_id: actorOfTurn(turn),
    principal: { type: 'agent', id: agent_id },
  } as const
}

async function write(
  turn: TurnAttempt,
  { write_memory_scope, share_between_actors }: KnowledgeConfig,
  said: { memory_store_id: string; content: string },
) {
  const { generation, services } = turn
  await requireWithinBounds(turn, said.memory_store_id)
  // The agent may have ceased to share since the request or the session was checked.
  const everybodys = write_memory_scope === 'store' && share_between_actors
  const state = (of: GenerationRow) =>
    writeFact(
      services,
      { ...said, mechanism: 'tool', ...factProvenance(of), ...(everybodys ? { actor_id: null } : {}) },
      { admitted: true },
    )
  const { entry } = await state(generation).catch(async error => {
    // The end user may have been merged with another since the turn was taken.
    const now = isGone(error) ? await generationKind.find(services.pool, generation.id) : null
    if (!now || now.actor_id === generation.actor_id) throw error
    return state(now)
  })
  return { action: entry.action, memory_id: entry.memory_id, entry_id: entry.id }
}

const isGone = (error: unknown): boolean => error instanceof AppError && error.code === 'ACTOR_NOT_FOUND'

/**
 * Raises FORBIDDEN where what narrows the turn leaves out writing to the store: boundaries of agents, and the rights of who
 * wrote what led to it. What the turn runs as needs no right of its own: the agent was given the store.
 */
async function requireWithinBounds({ agent, generation, services }: TurnAttempt, storeId: string): Promise<void> {
  const caller = await actingCaller(services, generation, agent)
  const gone = () => raise('FORBIDDEN', { message: 'The turn may not write to the memory store any more' })
  if (!caller) return gone()
  const authors = authorsRights(caller)
  const boundaries = { ...caller, layers: caller.layers.filter(({ kind }) => kind === 'agent') }
  if (authors.layers.length + boundaries.layers.length === 0) return
  const row = await memoryStoreKind.find(services.pool, storeId)
  if (!row) return gone()
  const target = { kind: memoryStoreKind, row }
  requirePermitted(authors, WRITE, target)
  for (const action of [WRITE, 'memories:UpdateMemory']) requirePermitted(boundaries, action, target)
}
