import { z } from 'zod'
import { signDelivery } from '#control/webhooks/deliver.ts'
import type { JsonObject } from '#core/api/flatten.ts'
import { type Problem, raise } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { fetchWithLimit } from '#core/net/limited-body.ts'
import type { TrackedRow } from '../records/store.ts'
import type { Live, RegisteredType } from './model.ts'

/** Requests to handlers of registered types. The operator configures their URLs, so egress rules do not apply. */

const MAX_BYTES = 1_048_576
const anObject = z.record(z.string(), z.unknown())

const Resource = z.object({ physical_resource_id: z.string().min(1).max(255), outputs: anObject.optional() })
const answers = {
  create: Resource,
  update: Resource,
  delete: z.object({}),
  validate: z.object({ errors: z.array(z.object({ path: z.string(), message: z.string() })) }),
  read: z.union([
    Resource.extend({ exists: z.literal(true), properties: anObject }),
    z.object({ exists: z.literal(false) }),
  ]),
} as const

type RequestType = keyof typeof answers

/**
 * Sends one request to a handler.
 * @param key idempotency key, the same for every repeat of a change
 * @throws FORMATION_HANDLER_FAILED for a status other than 2xx, a timeout, or an invalid response
 */
export async function callTypeHandler<T extends RequestType>(
  { config, clock }: Pick<Services, 'config' | 'clock'>,
  { name, handler }: RegisteredType,
  requestType: T,
  about: { logical_id: string } & JsonObject,
  key: string,
): Promise<z.output<(typeof answers)[T]>> {
  const body = JSON.stringify({ request_type: requestType, resource_type: name, ...about })
  const failed = (message: string, cause?: unknown): never =>
    raise('FORMATION_HANDLER_FAILED', { message, meta: { resource_type: name, request_type: requestType }, cause })
  const prefix = config.HEADER_PREFIX
  let status: number
  let text: string
  try {
    const response = await fetchWithLimit(MAX_BYTES)(handler.url, {
      method: 'POST',
      body,
      redirect: 'manual',
      headers: {
        'Content-Type': 'application/json',
        [`${prefix}Signature`]: signDelivery([handler.secret], body, clock.now()),
        [`${prefix}Idempotency-Key`]: key,
      },
      signal: AbortSignal.timeout(handler.timeoutMs),
    })
    status = response.status
    text = await response.text()
  } catch (error) {
    const isTimeout = error instanceof Error && error.name === 'TimeoutError'
    return failed(isTimeout ? 'Handler timed out' : 'Handler could not be reached', error)
  }
  const answer = parseJson(text)
  if (status < 200 || status > 299) {
    const reason = (answer as { message?: unknown } | undefined)?.message
    return failed(
      typeof reason === 'string' && reason !== '' ? reason.slice(0, 2000) : `Handler returned status ${status}`,
    )
  }
  const read = answers[requestType].safeParse(answer)
  return read.success ? (read.data as z.output<(typeof answers)[T]>) : failed('Handler returned an invalid response')
}

function parseJson(text: string): unknown {
  try {
    return text === '' ? {} : parseExactJson(text)
  } catch {
    return undefined
  }
}

/** Reads a resource from its handler; null if it no longer exists. Without `read`, returns the last applied properties. */
export async function readFromHandler(
  services: Services,
  type: RegisteredType,
  row: Pick<TrackedRow, 'id' | 'logical_id' | 'physical_resource_id' | 'applied'>,
  projectId: string,
): Promise<Live | null> {
  if (!type.capabilities.includes('read')) return { row: null, values: row.applied }
  const { logical_id, physical_resource_id } = row
  const answer = await callTypeHandler(
    services,
    type,
    'read',
    { logical_id, project_id: projectId, physical_resource_id },
    row.id,
  )
  return answer.exists ? { row: null, values: answer.properties } : null
}

/** Returns the problems that a handler reports for properties that match their schema. */
export async function validateWithHandler(
  services: Services,
  type: RegisteredType,
  logicalId: string,
  properties: JsonObject,
): Promise<Problem[]> {
  if (!type.capabilities.includes('validate')) return []
  const { errors } = await callTypeHandler(
    services,
    type,
    'validate',
    { logical_id: logicalId, properties },
    `validate:${logicalId}`,
  )
  return errors.map(({ path, message }) => ({ code: 'INVALID_VALUE', path, message }))
}
