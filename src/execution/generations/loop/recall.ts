import type { Result, SearchInput } from '#content/knowledge/model.ts'
import { runSearch } from '#content/knowledge/search.ts'
import { kinds } from '#core/api/kind.ts'
import { recordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { isTransient } from '#core/db/database-errors.ts'
import type { CallerFacts } from '#core/iam/caller.ts'
import {
  mergedKnowledge,
  type NamedStore,
  namesExternalId,
  type SessionKnowledge,
  searchedKnowledge,
} from '#execution/agents/knowledge.ts'
import { type ModelMessage, messageText, type PromptMessage } from '#execution/providers/model-messages.ts'
import type { Knowledge, TurnData } from '../model.ts'
import { escapeClosingTag, referenceBlock } from '../request/reference-block.ts'
import { storeKnowledge } from '../store.ts'
import { TurnClaimLost } from '../streams/live-turns.ts'
import { actingAuthority, actorOfTurn } from './acting-caller.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { sealTurnData } from './turn-data.ts'

const DEFAULT_LIMIT = 5
const DEFAULT_MIN_SCORE = 0.5
/** Longest query of a search, in characters. */
const MAX_QUERY = 8000

/**
 * Searches the agent's knowledge for the last user message, once per turn: later steps and attempts use the same block.
 * Returns the turn data with the results. A failed search is recorded and the turn continues without results.
 * @throws TurnClaimLost, the reason of the signal, errors while the database is unavailable
 */
export async function recallKnowledge(turn: TurnAttempt, data: TurnData, signal: AbortSignal): Promise<TurnData> {
  const { agent, generation, services } = turn
  const overlay = data.overrides.knowledge_config
  if (data.knowledge !== null || (agent.knowledge_config === null && !overlay)) return data
  const config = mergedKnowledge(agent.knowledge_config ?? {}, overlay)
  const request = requestOf(config, await placeholderValues(turn, config), data.messages ?? [])
  if (!request) return data
  const found = await searchKnowledge(turn, request, signal)
  const recalled = { ...data, knowledge: found }
  const { block: _, ...knowledge } = found
  if (!(await storeKnowledge(services.pool, generation, sealTurnData(services, generation, recalled), knowledge)))
    throw new TurnClaimLost()
  await injectFault(services, 'knowledge_kept')
  return recalled
}

/** Returns the values of the placeholders in a knowledge configuration. */
async function placeholderValues({ generation, services }: TurnAttempt, config: SessionKnowledge): Promise<NamedStore> {
  const { session_id } = generation
  const actor_id = actorOfTurn(generation)
  const actor =
    actor_id !== null && namesExternalId(config) ? await kinds.get('actor').find(services.pool, actor_id) : null
  return { session_id, actor_id, actor_external_id: actor?.external_id ?? null }
}

/** Returns the recalled knowledge as a user message that precedes all others. */
export const knowledgeMessages = ({ knowledge }: TurnData): PromptMessage[] =>
  knowledge?.block == null ? [] : [{ role: 'user', content: knowledge.block }]

async function searchKnowledge(
  { agent, generation, services }: TurnAttempt,
  request: SearchInput,
  signal: AbortSignal,
): Promise<NonNullable<TurnData['knowledge']>> {
  const { type, id } = generation.authority
  // The agent's knowledge belongs to its project, so permission layers of the principal do not narrow it. Facts of end
  // users are narrowed to the end user of the turn.
  const { bounds } = actingAuthority(generation, agent)
  const caller: CallerFacts = {
    principal: { type, id },
    credential: { type: 'run', id: generation.id },
    layers: [],
    bounds,
  }
  try {
    const scope = { caller, project: agent.project_id }
    const { results } = await runSearch(services, scope, request, { ref: generation.id, signal, admitted: true })
    const { block, included } = blockOf(results, services.config.KNOWLEDGE_INJECTION_MAX_CHARS)
    return { block, results: included.map(referenceOf), error: null }
  } catch (error) {
    if (signal.aborted) throw signal.reason
    if (isTransient(error)) throw error
    services.log.warn({ err: error, generation_id: generation.id }, 'knowledge recall failed')
    return { block: null, results: [], error: recordedFailure(error) }
  }
}

/** Returns the search of a turn; null without query and filters. */
function requestOf(
  config: SessionKnowledge,
  placeholders: NamedStore,
  messages: readonly ModelMessage[],
): SearchInput | null {
  const searched = searchedKnowledge(config, placeholders)
  if (!searched) return null
  const last = messages.findLast(message => message.role === 'user')
  const query = last ? truncateChars(messageText(last).trim(), MAX_QUERY) : ''
  const { memory_store_ids, document_ids, document_paths, tags, rrf_k, recency_half_life_days } = searched.config
  const isFiltered = [memory_store_ids, document_ids, document_paths, tags].some(
    filter => filter !== undefined && Object.keys(filter).length > 0,
  )
  if (query === '' && !isFiltered) return null
  return {
    ...(query === '' ? {} : { query }),
    limit: config.limit ?? DEFAULT_LIMIT,
    memory_store_ids,
    document_ids,
    document_paths,
    tags,
    include_memories: searched.memories,
    include_documents: searched.documents,
    min_similarity: config.min_score ?? DEFAULT_MIN_SCORE,
    rrf_k,
    recency_half_life_days,
  }
}

const referenceOf = (result: Result): Knowledge['results'][number] => ({
  type: result.source_type,
  ...(result.source_type === 'memory'
    ? { id: result.memory_id }
    : { id: result.chunk_id, document_id: result.document_id }),
  score: result.score ?? null,
})

/** Returns the message for the model with as many of the first results as fit, and these results. */
function blockOf(results: readonly Result[], maxChars: number): { block: string | null; included: readonly Result[] } {
  const frame = referenceBlock([])
  const entries: string[] = []
  let length = frame.length
  for (const result of results) {
    const entry = entryOf(result)
    length += entry.length + (entries.length > 0 ? 2 : 0)
    if (length > maxChars) break
    entries.push(entry)
  }
  if (entries.length === 0) return { block: null, included: [] }
  return { block: referenceBlock(entries), included: results.slice(0, entries.length) }
}

const oneLine = (text: string): string => text.replace(/\s+/g, ' ').trim()

function entryOf(result: Result): string {
  const name =
    result.source_type === 'memory'
      ? `Memory: ${oneLine(result.memory_store_name)} (${result.memory_id})`
      : `Document: ${oneLine(result.path ?? result.filename)}${result.page === null ? '' : ` (page ${result.page})`}`
  return escapeClosingTag(`[${name}]\n${result.content}`)
}
