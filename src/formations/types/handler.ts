import { z } from 'zod'
import { signDelivery } from '../../control/webhooks/deliver.ts'
import { type Problem, raise } from '../../core/api/errors.ts'
import type { JsonObject } from '../../core/api/flatten.ts'
import { fetchWithLimit } from '../../core/net/limited-body.ts'
import type { Services } from '../../core/process/services.ts'
import type { TrackedRow } from '../store.ts'
import type { Live, RegisteredType } from './model.ts'

/** Requests to the handler of a registered type. The operator names it, so that it may be on any network. */

const MAX_BYTES = 1_048_576
const anObject = z.record(z.string(), z.unknown())

const Made = z.object({ physical_resource_id: z.string().min(1).max(255), outputs: anObject.optional() })
const answers = {
  create: Made,
  update: Made,
  delete: z.object({}),
  validate: z.object({ errors: z.array(z.object({ path: z.string(), message: z.string() })) }),
  read: z.union([
    Made.extend({ exists: z.literal(true), properties: anObject }),
    z.object({ exists: z.literal(false) }),
  ]),
} as const

type RequestType = keyof typeof answers

/**
 * Asks a handler once.
 * @param key the same for every repeat of what changes something
 * @throws FORMATION_HANDLER_FAILED for another status than 2xx, no answer in time, or an answer of another form
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
    const late = error instanceof Error && error.name === 'TimeoutError'
    return failed(late ? 'The handler gave no answer in time' : 'The handler could not be reached', error)
  }
  const answer = parsed(text)
  if (status < 200 || status > 299) {
    const said = (answer as { message?: unknown } | undefined)?.message
    return failed(typeof said === 'string' && said !== '' ? said.slice(0, 2000) : `The handler answered ${status}`)
  }
  const read = answers[requestType].safeParse(answer)
  return read.success
    ? (read.data as z.output<(typeof answers)[T]>)
    : failed('The handler gave an answer of another form')
}

function parsed(text: string): unknown {
  try {
    return text === '' ? {} : JSON.parse(text)
  } catch {
    return undefined
  }
}

/** A resource as its handler shows it, or as it was last applied where the handler shows none; null when it is gone. */
export async function readHandled(
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

/** What the handler has against properties that fit their schema. */
export async function validateHandled(
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
