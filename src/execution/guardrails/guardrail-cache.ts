import { NotifiedCache } from '../../core/db/notified-cache.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import { projectGuardrailsChannel } from '../../identity/guardrail-ids.ts'
import { type GuardrailRule, ruleOf } from './document.ts'
import { guardrailsOfIds, projectsOfIds } from './store.ts'

/** Carries the id of a guardrail that was changed or deleted. */
export const guardrailChannel = 'muster_guardrails'

/** How long a process goes by what it read, should a notification be lost. */
const MAX_AGE_MS = 5000
/** Documents are at most 64 KiB. */
const MAX_RULES = 1000

type ProjectRules = { guardrail_ids: readonly string[]; keepsContent: boolean }

/**
 * Guardrails and what projects say of them, as this process knows them. A change is announced with its commit, and each
 * process drops what it knew: calls that begin after the announcement go by the new document.
 */
export const guardrailCache = processSingleton(
  ({ notifications, pool }) => ({
    rules: new NotifiedCache<{ rule: GuardrailRule | null }>(notifications, {
      channel: guardrailChannel,
      maxAgeMs: MAX_AGE_MS,
      maxEntries: MAX_RULES,
      load: async ids => {
        const rows = new Map((await guardrailsOfIds(pool, ids)).map(row => [row.id, row]))
        return ids.map(id => {
          const row = rows.get(id)
          return { rule: row ? ruleOf(row) : null }
        })
      },
    }),
    projects: new NotifiedCache<ProjectRules>(notifications, {
      channel: projectGuardrailsChannel,
      maxAgeMs: MAX_AGE_MS,
      load: async ids => {
        const rows = new Map((await projectsOfIds(pool, ids)).map(row => [row.id, row]))
        return ids.map(id => {
          const row = rows.get(id)
          return { guardrail_ids: row?.guardrail_ids ?? [], keepsContent: row?.trace_content_mode === 'full' }
        })
      },
    }),
  }),
  ({ rules, projects }) => {
    rules.close()
    projects.close()
  },
)
