import { LRUCache } from 'lru-cache'
import { raise } from '../../core/api/errors.ts'
import { withoutTenant } from '../../core/db/tenant-context.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import type { SecretSource } from './model.ts'
import { awsSecretStore } from './stores/aws.ts'
import { type SecretStore, type StoreAnswer, storeFailure } from './stores/store.ts'
import { vaultStore } from './stores/vault.ts'

/** How long a value that was read is used before it is read again. */
const KEPT_MS = 60_000
const KEPT = 1000
const VALUE_BYTES = 65_536
const DETAIL_LENGTH = 300

const stores: Record<SecretSource['type'], SecretStore> = { vault: vaultStore, aws_secrets_manager: awsSecretStore }

/** Whether the deployment is set up for a store. */
export const isConfigured = (config: Services['config'], type: SecretSource['type']): boolean =>
  stores[type].configured(config)

type Kept = { value: string; until: number }

/** Values that were read lately, and reads under way, by where the value lies. */
const known = processSingleton(() => ({
  kept: new LRUCache<string, Kept>({ max: KEPT }),
  reading: new Map<string, Promise<StoreAnswer>>(),
}))

/**
 * Where the value lies in its store: below the folder of its project, so that no project reads another's, nor anything
 * else that the deployment's credential opens.
 */
function placeOf({ config }: Pick<Services, 'config'>, projectId: string, { type, path }: SecretSource) {
  const [below, field] = path.split('#')
  const name = `${config.SECRETS_STORE_PREFIX.replaceAll('{project_id}', projectId)}${below}`
  return { name, field: field ?? null, key: `${type} ${name}#${field ?? ''}` }
}

/** The value that was read for a source in the last minute; null without one. */
export function cachedValue(services: Services, projectId: string, source: SecretSource): string | null {
  const kept = known(services).kept.get(placeOf(services, projectId, source).key)
  return kept && kept.until > services.clock.now().getTime() ? kept.value : null
}

/**
 * The value of a secret that lies in an external store, read at most once a minute and once at a time. For use at once:
 * never log it or put it into a message.
 * Raises SECRET_NOT_DECRYPTABLE with `meta.secret_id` and `meta.reason`.
 */
export async function readExternalValue(
  services: Services,
  secret: { id: string; project_id: string; source: SecretSource },
): Promise<string> {
  const kept = cachedValue(services, secret.project_id, secret.source)
  if (kept !== null) return kept
  const { reading } = known(services)
  const { key } = placeOf(services, secret.project_id, secret.source)
  let answer = reading.get(key)
  if (!answer) {
    answer = withoutTenant(() => read(services, secret)).finally(() => reading.delete(key))
    reading.set(key, answer)
  }
  const given = await answer
  if (given.ok) return given.value
  return raise('SECRET_NOT_DECRYPTABLE', {
    message: 'The value of the secret could not be had from its store',
    meta: { secret_id: secret.id, reason: given.reason },
  })
}

async function read(
  services: Services,
  { id, project_id, source }: { id: string; project_id: string; source: SecretSource },
): Promise<StoreAnswer> {
  const { config, clock, log } = services
  const { name, field, key } = placeOf(services, project_id, source)
  const started = performance.now()
  const signal = AbortSignal.timeout(config.SECRETS_STORE_TIMEOUT_MS)
  const answer = bounded(
    await stores[source.type]
      .read(services, name, field, signal)
      .catch(error => storeFailure('store_unreachable', String(error))),
  )
  const { kept } = known(services)
  // A value that was taken away or replaced by none is not used any longer.
  if (answer.ok) kept.set(key, { value: answer.value, until: clock.now().getTime() + KEPT_MS })
  else kept.delete(key)
  log[answer.ok ? 'info' : 'warn'](
    {
      secret_id: id,
      project_id,
      store: source.type,
      name,
      outcome: answer.ok ? 'read' : answer.reason,
      ...(answer.ok ? {} : { detail: answer.detail.slice(0, DETAIL_LENGTH) }),
      ms: Math.round(performance.now() - started),
    },
    'secret read from its store',
  )
  return answer
}

/** What a secret may be: not empty, at most 64 KiB. */
function bounded(answer: StoreAnswer): StoreAnswer {
  if (!answer.ok) return answer
  const bytes = Buffer.byteLength(answer.value)
  return bytes > 0 && bytes <= VALUE_BYTES ? answer : storeFailure('unusable_value', `${bytes} bytes`)
}
