import { newId } from '../../core/api/ids.ts'
import { NotifiedCache } from '../../core/db/notified-cache.ts'
import { perProcess } from '../../core/process/per-process.ts'
import type { TurnFollower } from '../generations/ended.ts'
import type { GenerationRow } from '../generations/model.ts'
import { rulesChannel } from './model.ts'
import { firingQueue } from './queue.ts'
import { enabledRules, firingInsert, type Watching } from './store.ts'

/** What `source` says of the turns of agents that say which facts are kept. */
export const SOURCE = 'memory_rule'

/** How long a process goes by what it read, should a notification be lost. */
const MAX_AGE_MS = 5000

/** The enabled rules of projects, as this process knows them: turns of projects without any cost no statement. */
const watchingOf = perProcess(
  ({ notifications, pool }) =>
    new NotifiedCache<Watching[]>(notifications, {
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
function matching(rules: readonly Watching[], { source, agent_id, conversation_id }: GenerationRow): Watching[] {
  if (source === SOURCE || rules.some(rule => rule.agent_id === agent_id)) return []
  return rules.filter(
    ({ on, source_agent_ids }) =>
      (on === 'generations.completed' || conversation_id !== null) &&
      (source_agent_ids === null || source_agent_ids.includes(agent_id)),
  )
}

/** Has rules fire by turns that complete: their firings and the wake-ups commit with the end of the turn. */
export const ruleFollower: TurnFollower = async (services, generation) => {
  // Of a turn that keeps no content there is nothing to read.
  if (generation.content_mode === 'none') return null
  const rules = matching(await watchingOf(services).get(generation.project_id), generation)
  if (rules.length === 0) return null
  const { id: generation_id, project_id } = generation
  return outgoing => {
    const firings = rules.map(({ id }) => ({ id: newId('mfire'), memory_rule_id: id }))
    outgoing.alongside(guard => firingInsert(firings, generation_id, guard))
    for (const { id } of firings) outgoing.send(firingQueue, { firing_id: id, generation_id, project_id })
  }
}
