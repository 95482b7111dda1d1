import { newId } from '../../core/api/ids.ts'
import { NotifiedCache } from '../../core/db/notified-cache.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { TurnCompletionHook } from '../generations/loop/turn-hooks.ts'
import type { GenerationRow } from '../generations/model.ts'
import { rulesChannel } from './model.ts'
import { memoryRuleQueue } from './queue.ts'
import { type EnabledRule, enabledRules, ruleFiringCte } from './store.ts'

/** What `source` says of the turns of agents that say which facts are kept. */
export const MEMORY_RULE_SOURCE = 'memory_rule'

/** How long a process goes by what it read, should a notification be lost. */
const MAX_AGE_MS = 5000

/** The enabled rules of projects, as this process knows them: turns of projects without any cost no statement. */
const watchingOf = processSingleton(
  ({ notifications, pool }) =>
    new NotifiedCache<EnabledRule[]>(notifications, {
      channel: rulesChannel,
      maxAgeMs: MAX_AGE_MS,
      load: async projectIds => {
        const rules = Map.groupBy(await enabledRules(pool, projectIds), ({ project_id }) => project_id)
        return projectIds.map(id => rules.get(id) ?? [])
      },
    }),
  cache => cache.close(),
)

/** The rules that a completed turn fires. What a handler causes fires none: it would go on for ever. */
function matching(rules: readonly EnabledRule[], { source, agent_id, conversation_id }: GenerationRow): EnabledRule[] {
  if (source === MEMORY_RULE_SOURCE || rules.some(rule => rule.agent_id === agent_id)) return []
  return rules.filter(
    ({ on, source_agent_ids }) =>
      (on === 'generations.completed' || conversation_id !== null) &&
      (source_agent_ids === null || source_agent_ids.includes(agent_id)),
  )
}

/** Has rules fire by turns that complete: their firings and the wake-ups commit with the end of the turn. */
export const ruleTurnHook: TurnCompletionHook = async (services, generation) => {
  // Of a turn that keeps no content there is nothing to read.
  if (generation.content_mode === 'none') return null
  const rules = matching(await watchingOf(services).get(generation.project_id), generation)
  if (rules.length === 0) return null
  const { id: generation_id, project_id } = generation
  return outgoing => {
    const firings = rules.map(({ id }) => ({ id: newId('mfire'), memory_rule_id: id }))
    outgoing.alongside(guard => ruleFiringCte(firings, generation_id, guard))
    for (const { id } of firings) outgoing.send(memoryRuleQueue, { firing_id: id, generation_id, project_id })
  }
}
