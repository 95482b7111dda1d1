import { processSingleton } from '#core/base/process-singleton.ts'
import { NotifiedCache } from '#core/db/notified-cache.ts'
import { projectGuardrailsChannel } from '#identity/projects/guardrail-ids.ts'
import { type GuardrailRule, ruleOf } from './document.ts'
import { guardrailChannel } from './model.ts'
import { listGuardrailsById, listProjectGuardrailSettings } from './store.ts'

/** Maximum age of a cached value if a notification is lost. */
const MAX_AGE_MS = 5000
/** Documents are at most 64 KiB. */
const MAX_RULES = 1000

type ProjectRules = { guardrail_ids: readonly string[]; keepsContent: boolean }

/**
 * Cached guardrails and project settings. A change is announced on commit and every process drops its copy: calls that
 * begin after the notification use the new document.
 */
export const guardrailCache = processSingleton(
  ({ notifications, pool }) => ({
    rules: new NotifiedCache<{ rule: GuardrailRule | null }>(notifications, {
      channel: guardrailChannel,
      maxAgeMs: MAX_AGE_MS,
      maxEntries: MAX_RULES,
      load: async ids => {
        const rows = new Map((await listGuardrailsById(pool, ids)).map(row => [row.id, row]))
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
        const rows = new Map((await listProjectGuardrailSettings(pool, ids)).map(row => [row.id, row]))
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
