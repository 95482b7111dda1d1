import { z } from 'zod'
import { hookBytes, hookJson, refuseDeclared } from '#automation/inbound/receive-body.ts'
import { operation, result, type StreamedRequest } from '#core/api/operation.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { withTenant } from '#core/db/tenant-context.ts'
import { findCallback } from '../engine/node-execution-store.ts'
import { runKind } from '../model.ts'
import { tokenHash } from '../nodes/callback-token.ts'
import { submitInput } from './command.ts'

/** Format of tokens; other values are not looked up. */
const TOKEN = /^rcb_(?:[\da-z]{2})?[\w-]{43}$/

const unknownToken = () => new AppError('RESOURCE_NOT_FOUND', { message: 'Callback token is unknown or already used' })

/** Errors of a node that no longer awaits input. */
const NOT_WAITING = [
  'ORCHESTRATION_RUN_NOT_FOUND',
  'ORCHESTRATION_RUN_NOT_AWAITING_INPUT',
  'ORCHESTRATION_HUMAN_NODE_MISMATCH',
]

/** Reads the body only if the token belongs to a waiting node. */
async function receive(request: StreamedRequest) {
  const { req, params, services } = request
  refuseDeclared(req)
  const hash = TOKEN.test(params.token) ? tokenHash(params.token) : null
  const wait = hash && (await findCallback(services.pool, hash))
  if (!wait) throw unknownToken()
  const output = hookJson(await hookBytes(request, wait.run_id))
  if (!isObject(output)) return raise('HOOK_INVALID_JSON', { message: 'Body must be a JSON object' })
  try {
    await withTenant({ tenant: wait.project_id, patienceMs: MAX_TENANT_WAIT_MS }, () =>
      services.write(tx => submitInput(tx, services, wait.run_id, wait.node_id, output)),
    )
  } catch (error) {
    if (error instanceof AppError && NOT_WAITING.includes(error.code)) throw unknownToken()
    throw error
  }
  return { body: {}, discard: async () => {} }
}

/** Time that a call waits for its turn among the calls of the project. */
const MAX_TENANT_WAIT_MS = 10_000

const Accepted = z
  .object({ accepted: z.literal(true).describe('Whether the call was accepted') })
  .meta({ id: 'RunCallbackAnswer' })

export const callRunHook = operation({
  id: 'callOrchestrationRunHook',
  method: 'post',
  path: '/hooks/orchestration-runs/{token}',
  summary: 'Submit a webhook callback',
  description:
    'One-time `callback_url` of a waiting webhook node; no bearer token is required. The body becomes the artifact of the node: a JSON object of at most 1 MiB, whatever its content type.',
  tag: 'Orchestrations',
  gate: 'public',
  about: runKind,
  body: z.looseObject({}).describe('JSON object that becomes the artifact of the node').meta({ id: 'RunCallbackBody' }),
  receive,
  answers: { 202: Accepted },
  raises: ['HOOK_PAYLOAD_TOO_LARGE', 'HOOK_INVALID_JSON', 'RESOURCE_NOT_FOUND', 'ORCHESTRATION_RUN_PAUSED'],
  transaction: false,
  internal: true,
  run: async () => result(202, { accepted: true }),
})
