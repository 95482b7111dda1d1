import { LRUCache } from 'lru-cache'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import type { FoundBy, ProviderProfile, ProviderRow } from './model.ts'
import { isRefusedSetting, type RefusedSetting } from './outgoing/refused-settings.ts'
import { addFindings } from './store.ts'

/** A fact about a model: a setting that it refuses, or `thinks` - it thinks before each answer. */
export type Finding = RefusedSetting | 'thinks'

/** Findings about a model, as one call reads and adds them. */
export type ModelFindings = {
  has(finding: Finding): boolean
  refused(): ReadonlySet<RefusedSetting>
  add(found: readonly Finding[]): void
}

/** Lifetime of findings of calls; findings of a check hold until the next check. */
export const FINDING_LIFE_MS = 86_400_000
const MAX_MODELS = 10_000

type Findings = ProviderProfile[string]

/** Findings of this process, for calls that began before they were stored, by provider and its last change. */
const own = processSingleton(() => new LRUCache<string, Findings>({ max: MAX_MODELS, ttl: FINDING_LIFE_MS }))

const NO_SETTINGS: ReadonlySet<RefusedSetting> = new Set()

const isValid = (found: { by: FoundBy; at: string } | undefined, now: number): boolean =>
  found !== undefined && (found.by === 'check' || Date.parse(found.at) > now - FINDING_LIFE_MS)

/** Returns the time at which a finding expires; null for one of a check. */
export const expiryOf = ({ by, at }: { by: FoundBy; at: string }): Date | null =>
  by === 'check' ? null : new Date(Date.parse(at) + FINDING_LIFE_MS)

/** Returns the valid findings about the models of a provider. */
export const validFindings = ({ profile }: Pick<ProviderRow, 'profile'>, now: Date) =>
  Object.entries(profile).flatMap(([model, findings]) =>
    Object.entries(findings).flatMap(([finding, found]) =>
      isValid(found, now.getTime()) ? [{ model, finding: finding as Finding, ...found }] : [],
    ),
  )

/**
 * Returns the findings about a model of a provider. New findings apply to this process immediately and are stored with the
 * provider in the background, for its next calls in all processes; not if the provider has changed meanwhile.
 */
export function findingsOf(services: Services, provider: ProviderRow, model: string): ModelFindings {
  const key = `${provider.id} ${Date.parse(provider.updated_at)} ${model}`
  const known = (): Findings => ({ ...provider.profile[model], ...own(services).get(key) })
  const has = (finding: Finding) => isValid(known()[finding], services.clock.now().getTime())
  return {
    has,
    refused() {
      if (!provider.profile[model] && !own(services).has(key)) return NO_SETTINGS
      return new Set(Object.keys(known()).filter(isRefusedSetting).filter(has))
    },
    add(found) {
      const at = services.clock.now().toISOString()
      const findings: Findings = Object.fromEntries(found.map(finding => [finding, { by: 'call', at }]))
      own(services).set(key, { ...own(services).get(key), ...findings })
      onSeparateConnection(() => addFindings(services.pool, provider, { model, findings, at })).catch(error =>
        services.log.warn({ err: error, ai_provider_id: provider.id }, 'provider profile write failed'),
      )
    },
  }
}

/** Returns findings that begin empty and are stored nowhere. */
export function freshFindings(): ModelFindings {
  const found = new Set<Finding>()
  return {
    has: finding => found.has(finding),
    refused: () => new Set([...found].filter(isRefusedSetting)),
    add: findings => findings.forEach(each => void found.add(each)),
  }
}
