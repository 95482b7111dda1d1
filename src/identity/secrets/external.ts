import { LRUCache } from 'lru-cache'
import { raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'
import type { SecretSource } from './model.ts'
import { awsSecretStore } from './stores/aws.ts'
import { type SecretStore, type StoreAnswer, storeFailure } from './stores/store.ts'
import { vaultStore } from './stores/vault.ts'

/** Lifetime of a cached value. */
const CACHE_MS = 60_000
const CACHE_ENTRIES = 1000
const VALUE_BYTES = 65_536
const DETAIL_LENGTH = 300

const stores: Record<SecretSource['type'], SecretStore> = { vault: vaultStore, aws_secrets_manager: awsSecretStore }

/** Whether the deployment is configured for a store. */
export const isConfigured = (config: Services['config'], type: SecretSource['type']): boolean =>
  stores[type].configured(config)

type CachedValue = { value: string; until: number }

/** Cached values and active reads, by location of the value. */
const valueCache = processSingleton(() => ({
  kept: new LRUCache<string, CachedValue>({ max: CACHE_ENTRIES }),
  reading: new Map<string, Promise<StoreAnswer>>(),
}))

/**
 * Returns the location of a value in its store: below the folder of its project, so that a project reads neither values
 * of another nor anything else to which the deployment's credential has access.
 */
function locate({ config }: Pick<Services, 'config'>, projectId: string, { type, path }: SecretSource) {
  const [relative, field] = path.split('#')
  const name = `${config.SECRETS_STORE_PREFIX.replaceAll('{project_id}', projectId)}${relative}`
  return { name, field: field ?? null, key: `${type} ${name}#${field ?? ''}` }
}

/** Returns the value cached for a source in the last minute; null if there is none. */
export function cachedValue(services: Services, projectId: string, source: SecretSource): string | null {
  const cached = valueCache(services).kept.get(locate(services, projectId, source).key)
  return cached && cached.until > services.clock.now().getTime() ? cached.value : null
}

/**
 * Returns the value of a secret from an external store, read at most once a minute and by one request at a time. For
 * immediate use: never log it or put it into a message.
 * @throws SECRET_NOT_DECRYPTABLE with `meta.secret_id` and `meta.reason`
 */
export async function readExternalValue(
  services: Services,
  secret: { id: string; project_id: string; source: SecretSource },
): Promise<string> {
  const cached = cachedValue(services, secret.project_id, secret.source)
  if (cached !== null) return cached
  const { reading } = valueCache(services)
  const { key } = locate(services, secret.project_id, secret.source)
  let answer = reading.get(key)
  if (!answer) {
    answer = withoutTenant(() => readFromStore(services, secret)).finally(() => reading.delete(key))
    reading.set(key, answer)
  }
  const outcome = await answer
  if (outcome.ok) return outcome.value
  return raise('SECRET_NOT_DECRYPTABLE', {
    message: `Value of secret ${secret.id} could not be read from its store`,
    meta: { secret_id: secret.id, reason: outcome.reason },
  })
}

async function readFromStore(
  services: Services,
  { id, project_id, source }: { id: string; project_id: string; source: SecretSource },
): Promise<StoreAnswer> {
  const { config, clock, log } = services
  const { name, field, key } = locate(services, project_id, source)
  const startedAt = performance.now()
  const signal = AbortSignal.timeout(config.SECRETS_STORE_TIMEOUT_MS)
  const answer = requireUsable(
    await stores[source.type]
      .read(services, name, field, signal)
      .catch(error => storeFailure('store_unreachable', String(error))),
  )
  const { kept: cached } = valueCache(services)
  // A deleted or invalid value must not be used any longer.
  if (answer.ok) cached.set(key, { value: answer.value, until: clock.now().getTime() + CACHE_MS })
  else cached.delete(key)
  log[answer.ok ? 'info' : 'warn'](
    {
      secret_id: id,
      project_id,
      store: source.type,
      name,
      outcome: answer.ok ? 'read' : answer.reason,
      ...(answer.ok ? {} : { detail: answer.detail.slice(0, DETAIL_LENGTH) }),
      ms: Math.round(performance.now() - startedAt),
    },
    'external secret read',
  )
  return answer
}

/** Returns a failure for an empty value and for values above 64 KiB. */
function requireUsable(answer: StoreAnswer): StoreAnswer {
  if (!answer.ok) return answer
  const bytes = Buffer.byteLength(answer.value)
  return bytes > 0 && bytes <= VALUE_BYTES ? answer : storeFailure('unusable_value', `${bytes} bytes`)
}
