import { z } from 'zod'
import { AppError, raise } from '../../../core/api/errors.ts'
import { operation, result, type StreamedRequest } from '../../../core/api/operation.ts'
import { withTenant } from '../../../core/db/tenant-context.ts'
import { isObject } from '../../../core/expressions/evaluate.ts'
import { hookBytes, hookJson, refuseDeclared } from '../../hooks/body.ts'
import { callbackOf } from '../engine/node-execution-store.ts'
import { runKind } from '../model.ts'
import { tokenHash } from '../nodes/callback-token.ts'
import { submitInput } from './command.ts'

/** The pattern of tokens: nothing else is looked up. */
const TOKEN = /^rcb_[\w-]{43}$/

const unknown = () => new AppError('RESOURCE_NOT_FOUND', { message: 'Nothing waits for this call' })

/** Answers that a node cannot be given any more. */
const OVER = [
  'ORCHESTRATION_RUN_NOT_FOUND',
  'ORCHESTRATION_RUN_NOT_AWAITING_INPUT',
  'ORCHESTRATION_HUMAN_NODE_MISMATCH',
]

/** Nothing of the body is read for who has no token that is waited for. */
async function receive(request: StreamedRequest) {
  const { req, params, services } = request
  refuseDeclared(req)
  const hash = TOKEN.test(params.token) ? tokenHash(params.token) : null
  const wait = hash && (await callbackOf(services.pool, hash))
  if (!wait) throw unknown()
  const output = hookJson(await hookBytes(request, wait.run_id))
  if (!isObject(output)) return raise('HOOK_INVALID_JSON', { message: 'The body must be a JSON object' })
  try {
    await withTenant({ tenant: wait.project_id, patienceMs: PATIENCE_MS }, () =>
      services.write(tx => submitInput(tx, services, wait.run_id, wait.node_id, output)),
    )
  } catch (error) {
    if (error instanceof AppError && OVER.includes(error.code)) throw unknown()
    throw error
  }
  return { body: {}, discard: async () => {} }
}

/** Behind which others of the project are served. */
const PATIENCE_MS = 10_000

const Accepted = z
  .object({ accepted: z.literal(true).describe('The call was taken') })
  .meta({ id: 'RunCallbackAnswer' })

export const callRunHook = operation({
  id: 'callOrchestrationRunHook',
  method: 'post',
  path: '/hooks/orchestration-runs/{token}',
  summary: 'Answer a webhook node of a run',
  description:
    'The `callback_url` that the run shows while the node waits: no bearer token, and it works once. The body, a JSON object of at most 1 MiB whatever its type says, is the artifact of the node.',
  tag: 'Orchestrations',
  gate: 'public',
  about: runKind,
  body: z.looseObject({}).describe('Any JSON object; it is the artifact of the node').meta({ id: 'RunCallbackBody' }),
  receive,
  answers: { 202: Accepted },
  raises: ['HOOK_PAYLOAD_TOO_LARGE', 'HOOK_INVALID_JSON', 'RESOURCE_NOT_FOUND', 'ORCHESTRATION_RUN_PAUSED'],
  transaction: false,
  internal: true,
  run: async () => result(202, { accepted: true }),
})
