import { newId } from '#core/base/ids.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import { NotifiedCache } from '#core/db/notified-cache.ts'
import type { TurnCompletionHook } from '../generations/loop/turn-hooks.ts'
import { EVAL_SOURCE, type GenerationRow } from '../generations/model.ts'
import { wakeFirings } from './fire.ts'
import { MEMORY_RULE_SOURCE, rulesChannel } from './model.ts'
import { type EnabledRule, listEnabledRules, ruleFiringCte } from './store.ts'

/** Maximum age of a cached value if a notification is lost. */
const MAX_AGE_MS = 5000

/** Cached enabled rules by project, so that a turn in a project without rules needs no query. */
const enabledRuleCache = processSingleton(
  ({ notifications, pool }) =>
    new NotifiedCache<EnabledRule[]>(notifications, {
      channel: rulesChannel,
      maxAgeMs: MAX_AGE_MS,
      load: async projectIds => {
        const rules = Map.groupBy(await listEnabledRules(pool, projectIds), ({ project_id }) => project_id)
        return projectIds.map(id => rules.get(id) ?? [])
      },
    }),
  cache => cache.close(),
)

/**
 * Returns the rules that a completed turn fires. Handler turns fire none, which would never end; turns of evaluations, and
 * the turns that they start, only rules that include them.
 */
function matchingRules(
  rules: readonly EnabledRule[],
  { source, agent_id, conversation_id }: GenerationRow,
): EnabledRule[] {
  if (source === MEMORY_RULE_SOURCE || rules.some(rule => rule.agent_id === agent_id)) return []
  return rules.filter(
    ({ on, source_agent_ids, include_evaluations }) =>
      (source !== EVAL_SOURCE || include_evaluations) &&
      (on === 'generations.completed' || conversation_id !== null) &&
      (source_agent_ids === null || source_agent_ids.includes(agent_id)),
  )
}

/** Inserts the firings of a completed turn and their wake-ups in the transaction that settles it. */
export const ruleTurnHook: TurnCompletionHook = async (services, generation, { isRefused }) => {
  // Without content there are no facts, and a vendor that refused the turn refuses their extraction too.
  if (generation.content_mode === 'none' || isRefused) return null
  const rules = matchingRules(await enabledRuleCache(services).get(generation.project_id), generation)
  if (rules.length === 0) return null
  const { id: generation_id, project_id } = generation
  return outbox => {
    const firings = rules.map(({ id }) => ({ id: newId('mfire'), memory_rule_id: id }))
    outbox.alongside(guard => ruleFiringCte(firings, generation_id, guard))
    wakeFirings(
      outbox,
      project_id,
      firings.map(({ id }) => id),
    )
  }
}
