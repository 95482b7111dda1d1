import { authorPermissions, requirePermitted } from '#core/api/access.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { type KnowledgeConfig, mergedKnowledge } from '#execution/agents/knowledge.ts'
import { withToolDefaults } from '#execution/tools/model.ts'
import { writeFact } from '#memory/entries/write.ts'
import { MAX_CONTENT } from '#memory/facts/model.ts'
import { memoryStoreKind } from '#memory/stores/model.ts'
import { WRITE_MEMORY } from '../journal/step.ts'
import { actingCaller, actorOfTurn } from '../loop/acting-caller.ts'
import type { TurnAttempt } from '../loop/turn-attempt.ts'
import { type GenerationRow, generationKind, type TurnData } from '../model.ts'
import type { TurnTool, Unavailable } from './toolbox.ts'

const WRITE = 'memories:CreateMemoryEntry'

const DESCRIPTION =
  'Remember a fact beyond this conversation. Write one self-contained statement. A fact that is already stored is not written again.'

const SCHEMA = {
  type: 'object',
  properties: {
    content: { type: 'string', minLength: 1, maxLength: MAX_CONTENT, description: 'The fact, in one or two sentences' },
  },
  required: ['content'],
  additionalProperties: false,
}

/** Returns the tool that writes to the agent's memory store; null if the agent has none or is shared. */
export async function writeMemoryTool(turn: TurnAttempt, data: TurnData): Promise<TurnTool | Unavailable | null> {
  const { agent, generation, services } = turn
  const config: KnowledgeConfig = mergedKnowledge(agent.knowledge_config ?? {}, data.overrides.knowledge_config)
  const storeId = config.write_memory_store_id ?? null
  // A shared agent does not write to the memory store of its publisher.
  if (storeId === null || agent.project_id !== generation.project_id) return null
  const store = await memoryStoreKind.find(services.pool, storeId)
  if (store?.project_id !== agent.project_id)
    return { tool_id: null, tool_name: WRITE_MEMORY, tool_type: null, reason: 'memory store not found' }
  const definition = withToolDefaults({ name: WRITE_MEMORY, description: DESCRIPTION, parameters: SCHEMA })
  return {
    name: WRITE_MEMORY,
    description: DESCRIPTION,
    schema: SCHEMA,
    validationSchema: null,
    callable: { ...definition, id: null, project_id: agent.project_id, guardrail_ids: null },
    action: null,
    // A fact that is already stored is skipped.
    repeatable: true,
    justificationFields: [],
    perform: input => writeTurnFact(turn, config, { memory_store_id: storeId, content: input.content as string }),
  }
}

/** Returns the source, the end user and the principal of a fact written in a turn. */
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

async function writeTurnFact(
  turn: TurnAttempt,
  { write_memory_scope, share_between_actors }: KnowledgeConfig,
  fact: { memory_store_id: string; content: string },
) {
  const { generation, services } = turn
  await requireWithinBounds(turn, fact.memory_store_id)
  // Sharing may have been turned off since the request or the session was checked.
  const isShared = write_memory_scope === 'store' && share_between_actors
  const writeAs = (row: GenerationRow) =>
    writeFact(
      services,
      { ...fact, mechanism: 'tool', ...factProvenance(row), ...(isShared ? { actor_id: null } : {}) },
      { admitted: true },
    )
  const { entry } = await writeAs(generation).catch(async error => {
    // The end user may have been merged into another since the turn was claimed.
    const current = isActorMissing(error) ? await generationKind.find(services.pool, generation.id) : null
    if (!current || current.actor_id === generation.actor_id) throw error
    return writeAs(current)
  })
  return { action: entry.action, memory_id: entry.memory_id, entry_id: entry.id }
}

const isActorMissing = (error: unknown): boolean => error instanceof AppError && error.code === 'ACTOR_NOT_FOUND'

/**
 * Checks the boundaries of agents and the permissions of authors for writing to the store. The turn's principal
 * requires no permission: the agent was configured with the store.
 * @throws FORBIDDEN
 */
async function requireWithinBounds({ agent, generation, services }: TurnAttempt, storeId: string): Promise<void> {
  const caller = await actingCaller(services, generation, agent)
  const refuse = () => raise('FORBIDDEN', { message: `The turn may no longer write to memory store ${storeId}` })
  if (!caller) return refuse()
  const authors = authorPermissions(caller)
  const boundaries = { ...caller, layers: caller.layers.filter(({ kind }) => kind === 'agent') }
  if (authors.layers.length + boundaries.layers.length === 0) return
  const row = await memoryStoreKind.find(services.pool, storeId)
  if (!row) return refuse()
  const target = { kind: memoryStoreKind, row }
  requirePermitted(authors, WRITE, target)
  for (const action of [WRITE, 'memories:UpdateMemory']) requirePermitted(boundaries, action, target)
}
